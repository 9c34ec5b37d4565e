"""Take secrets out of text before it is stored or shown to a model. Pure; linear in the size of the text (Hyperscan, RE2).

What replaces a secret says what kind it was; names, schemes and line breaks stay, so that a line keeps
its meaning and its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import re2

from rules.matcher import PatternSet, byte_options

__all__ = ["Redactor", "redact_text", "redactor"]

# A value that is already redacted, or a reference to one that is not here, holds no secret.
VALUE = rb"(?:[^\s\"'\[<${,;&]|\$[^{(A-Z\s\"',;&])[^\s\"',;&]{5,}"


@dataclass(frozen=True, slots=True)
class Secret:
    """`hint` finds lines worth a look (a Hyperscan pattern that ends at a fixed length); `pattern` (RE2) takes the secret out.

    `replacement` may quote the groups that stay.
    """

    name: str
    hint: bytes
    pattern: bytes
    replacement: bytes


def plain(name: str, hint: bytes, pattern: bytes) -> Secret:
    return Secret(name, hint, pattern, b"[redacted:" + name.encode() + b"]")


SECRETS = (
    plain("aws-key", rb"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}", rb"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16,}\b"),
    plain("huggingface-token", rb"\bhf_[A-Za-z0-9]{20}", rb"\bhf_[A-Za-z0-9]{20,}"),
    plain("api-key", rb"\bsk-[A-Za-z0-9_-]{20}", rb"\bsk-[A-Za-z0-9_-]{20,}"),
    plain(
        "github-token",
        rb"\b(?:gh[pousr]_[A-Za-z0-9]{20}|github_pat_[A-Za-z0-9_]{20})",
        rb"\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{20,}",
    ),
    plain("gitlab-token", rb"\bglpat-[A-Za-z0-9_-]{16}", rb"\bglpat-[A-Za-z0-9_-]{16,}"),
    plain("slack-token", rb"\bxox[abeoprs]-[A-Za-z0-9-]{10}", rb"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    plain("slack-webhook", rb"hooks\.slack\.com/services/[A-Z]", rb"https?://hooks\.slack\.com/services/[A-Za-z0-9/]+"),
    plain("google-key", rb"\bAIza[A-Za-z0-9_-]{30}", rb"\bAIza[A-Za-z0-9_-]{30,}"),
    plain("json-web-token", rb"\beyJ[A-Za-z0-9_-]{8}", rb"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    Secret(
        "authorization",
        rb"(?i)\b(?:bearer|basic|authorization)\b",
        rb"(?i)(\b(?:authorization[\"']?[ \t]*[:=][ \t]*[\"']?(?:[a-z]+[ \t]+)?|bearer[ \t]+))[A-Za-z0-9._~+/=-]{8,}",
        rb"\1[redacted:authorization]",
    ),
    Secret(
        "url-password",
        rb"[A-Za-z0-9]://[^\s/@:]{0,64}:[^\s/@]{1,64}@",
        rb"([A-Za-z][A-Za-z0-9+.-]*://[^\s/@:\"']*:)[^\s/@\"']+@",
        rb"\1[redacted:url-password]@",
    ),
    Secret(
        "named-secret",
        rb"(?i)(?:passw(?:or)?d|passphrase|secret|credential|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key"
        rb"|(?:auth|access|api|session|refresh|bearer|hub|hf|id)[_-]?token)",
        rb"(?i)([\w.-]*(?:passw(?:or)?d|passphrase|secret|credential|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key"
        rb"|(?:auth|access|api|session|refresh|bearer|hub|hf|id)[_-]?token)[\w.-]*[\"']?[ \t]*(?:=>|[:=])[ \t]*)"
        rb"(?:\"[^\"\n\[]{6,}\"|'[^'\n\[]{6,}'|" + VALUE + rb")",
        rb"\1[redacted:named-secret]",
    ),
)
KEY_BEGIN = rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY"
KEY_END = b"-----END "
KEY_LINE = b"[redacted:private-key]"


class Redactor:
    """Compiled once per process."""

    def __init__(self) -> None:
        self._hints = PatternSet([*(secret.hint for secret in SECRETS), KEY_BEGIN])
        self._patterns: tuple[Any, ...] = tuple(re2.compile(secret.pattern, byte_options()) for secret in SECRETS)

    def redact(self, block: bytes) -> bytes:
        """`block` without its secrets; it keeps its number of lines. A private key is taken out from its first line to its last
        (or to the end of the block)."""
        found: dict[int, list[int]] = {}
        for line, pattern in self._hints.find(block):
            found.setdefault(line, []).append(pattern)
        if not found:
            return block
        lines = block.split(b"\n")
        in_key_until = -1
        for number in sorted(found):
            # Secrets may hide in one another: every pattern looks at a line that any of them pointed to.
            if number > in_key_until and len(SECRETS) in found[number]:
                in_key_until = self._take_key_out(lines, number)
            elif number > in_key_until:
                text = lines[number]
                for secret, pattern in zip(SECRETS, self._patterns, strict=True):
                    text = pattern.sub(secret.replacement, text)
                lines[number] = text
        return b"\n".join(lines)

    def _take_key_out(self, lines: list[bytes], first: int) -> int:
        """Replace the key that begins in line `first`; returns the index of its last line."""
        begin = lines[first].find(b"-----BEGIN ")
        last = first
        while last < len(lines) and KEY_END not in lines[last]:
            last += 1
        whole = last < len(lines)
        # The final piece after the last newline is no line.
        last = last if whole else max(first, len(lines) - 1 - (lines[-1] == b""))
        head = lines[first][:begin]
        tail = lines[last][lines[last].rfind(b"-----") + 5 :] if whole and last != first else b""
        for number in range(first, last + 1):
            lines[number] = KEY_LINE
        lines[first] = self.redact(head) + KEY_LINE
        if last != first:
            lines[last] += self.redact(tail)
        return last


@cache
def redactor() -> Redactor:
    """The redactor of this process."""
    return Redactor()


def redact_text(text: str) -> str:
    """`text` without its secrets."""
    return redactor().redact(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
