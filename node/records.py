"""Lines of one file in a row as one record of `POST /api/v1/logs`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["record_of"]


def record_of(head: Mapping[str, Any], time: float, number: int, texts: Sequence[str]) -> str:
    """`head`: whose lines they are, and of which file; `texts`: from line `number` on, without their line feeds.

    A service that knows no `lines` takes the same lines, all under the number of the first.
    """
    record = {**head, "number": number, "time": round(time, 6), "lines": len(texts), "line": "\n".join(texts) + "\n"}
    return json.dumps(record, separators=(",", ":"))
