"""torchelastic's `error.json`: what a worker wrote about its own end.

Format: torch 2.13 `torch/distributed/elastic/multiprocessing/errors/error_handler.py`. The file of local rank n lies in
`<log_dir>/<run>/attempt_<m>/<n>/error.json`; the earliest timestamp of all ranks is the first observed failure.
"""

from __future__ import annotations

from typing import Any

from detectors.reading.text import origin_of_path
from rules.signal import Line

__all__ = ["error_lines"]

# An exception's text may carry a tensor; its first lines say what it is.
MAX_LINES = 400


def error_lines(document: Any, path: str) -> tuple[Line, ...] | None:
    """The exception and its traceback as lines of the worker; None where `document` is no such file."""
    if not isinstance(document, dict) or "message" not in document:
        return None
    message = document["message"]
    inner = message if isinstance(message, dict) else {"message": message}
    extra = inner.get("extraInfo")
    details = extra if isinstance(extra, dict) else {}
    if not isinstance(inner.get("message"), str) or not ({"errorCode"} & (set(document) | set(inner)) or details):
        return None
    time = seconds(details.get("timestamp"))
    origin = origin_of_path(path)
    rank = origin.rank if origin.rank is not None else origin.local
    texts = [line for key in ("py_callstack",) if isinstance(details.get(key), str) for line in details[key].splitlines()]
    texts += inner["message"].splitlines()
    code = document.get("errorCode", inner.get("errorCode"))
    if isinstance(code, int) and not isinstance(code, bool) and abs(code) < 1_000 and code:
        texts.append(f"torchelastic: {'a worker' if rank is None else f'local rank {rank}'} failed with exit code {code}")
    return tuple(Line(text, 1, path, rank, origin.node, time) for text in texts[-MAX_LINES:])


def seconds(value: Any) -> float | None:
    try:
        time = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return time if 0 < time < 1e11 else None
