"""What the decoders of foreign protocols give: records of lines, or one error."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProtocolError"]


class ProtocolError(ValueError):
    """A body that is not what its door takes; one line that says what is wrong. Nothing of it was stored."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a body may hold, in bytes and levels."""

    decoded_bytes: int
    line_bytes: int
    nesting: int
