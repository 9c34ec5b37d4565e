"""Asking the service over HTTP, for the commands that do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cli.main import UsageError, fail
from rules.file_errors import cannot_read

__all__ = ["ask"]

DEFAULT_SERVICE = "http://127.0.0.1:8787"


def ask(
    method: str,
    path: str,
    service: str | None,
    token_file: Path | None,
    body: dict[str, Any] | None = None,
    accepted: tuple[int, ...] = (),
) -> dict[str, Any]:
    """The service's JSON answer. Ends with one line where the token cannot be read, nobody answers, or the service refuses
    with a status that is not `accepted`."""
    import httpx2

    from node.service_client import words_of

    address = (service or os.environ.get("PITSTOP_SERVICE") or DEFAULT_SERVICE).rstrip("/")
    token = token_file or (Path(os.environ["PITSTOP_TOKEN_FILE"]) if os.environ.get("PITSTOP_TOKEN_FILE") else None)
    headers = {}
    if token is not None:
        try:
            headers["Authorization"] = f"Bearer {token.read_text(encoding='utf-8').strip()}"
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(cannot_read(f"the token file {token}", error)) from None
    try:
        # The service is in the cluster: a proxy of the environment is for other places.
        answer = httpx2.request(method, f"{address}{path}", json=body, headers=headers, timeout=10, trust_env=False)
    except httpx2.HTTPError as error:
        fail(f"{address} does not answer ({words_of(error)}): is the service running?", 1)
    try:
        document = answer.json()
    except json.JSONDecodeError:
        document = None
    if not answer.is_success and answer.status_code not in accepted:
        detail = document.get("detail") if isinstance(document, dict) else answer.text[:200]
        fail(f"{address} refused: {detail}", 1)
    if not isinstance(document, dict):
        fail(f"{address} answered with something that is not Pitstop's", 1)
    return document
