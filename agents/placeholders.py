"""Stable placeholders for what must not leave the machine: host names, addresses, user names; put back in the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import re2

__all__ = ["Placeholders"]

ADDRESS = r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}\b"
MAIL = r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"
HOME = r"/(?:home|Users|root|scratch/users?|data/users?)/"
ZONES = "com|net|org|edu|gov|io|local|internal|cluster|lan|corp|example|svc"
HOST = rf"\b[a-zA-Z][\w-]*(?:\.[a-zA-Z][\w-]*)*\.(?:{ZONES})\b"
PLACEHOLDER = re2.compile(r"<(?:HOST|USER|MAIL|ADDRESS|TEXT)-\d+>")


def alternatives(names: Iterable[str]) -> str:
    """A pattern of whole names, the longest first, so that no name is cut by another that it contains."""
    known = sorted({name for name in names if len(name) > 2}, key=lambda name: (-len(name), name))
    return r"\b(?:" + "|".join(re2.escape(name) for name in known) + r")\b" if known else r"[^\s\S]"


class Placeholders:
    """One mapping a conversation: equal values get equal placeholders, and `restore` undoes them all."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        """`hosts` and `users` are names known beforehand: nodes with their aliases, owners of jobs."""
        self._forward: dict[str, str] = {}
        self._back: dict[str, str] = {}
        # One pass over the text: nothing that was put in is looked at again. What looks like a placeholder already gets one too.
        self._wanted = re2.compile(
            rf"(?P<TEXT><(?:HOST|USER|MAIL|ADDRESS|TEXT)-\d+>)|(?P<home>{HOME})(?P<owner>[\w.-]+)|(?P<MAIL>{MAIL})"
            rf"|(?P<HOST>{alternatives(hosts)}|{HOST})|(?P<USER>{alternatives(users)})|(?P<ADDRESS>{ADDRESS})"
        )

    def _placeholder(self, value: str, kind: str) -> str:
        if value not in self._forward:
            made = f"<{kind}-{len(self._forward) + 1}>"
            self._forward[value], self._back[made] = made, value
        return self._forward[value]

    def _replace(self, match: Any) -> str:
        found: dict[str, str | None] = match.groupdict()
        if found["owner"]:
            return f"{found['home']}{self._placeholder(found['owner'], 'USER')}"
        kind = next(name for name in ("TEXT", "MAIL", "HOST", "USER", "ADDRESS") if found[name])
        return self._placeholder(str(found[kind]), kind)

    def hide(self, text: str) -> str:
        """`text` with every host, address, mail address and user name replaced."""
        return str(self._wanted.sub(self._replace, text))

    def restore(self, text: str) -> str:
        """The inverse of `hide` for the placeholders that this mapping gave out."""
        return str(PLACEHOLDER.sub(lambda match: self._back.get(match.group(0), match.group(0)), text))
