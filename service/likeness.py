"""Which jobs are alike: those that start the same program by the same launcher share the filters learnt from one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.jobs import Job

__all__ = ["jobs_alike", "traits_of"]


def traits_of(command: Sequence[str]) -> dict[str, str]:
    """The launcher and the program of a job's command; empty where neither can be told, so that nothing is shared.

    `torchrun --nproc 8 /x/pretrain_gpt.py --lr 1` has launcher torchrun and program pretrain_gpt.py; `python -m pkg.train` has
    program pkg.train.
    """
    words = [word for word in command if word]
    if not words:
        return {}
    launcher = PurePosixPath(words[0]).name
    program = next((PurePosixPath(word).name for word in words[1:] if word.endswith(".py")), "")
    if not program and "-m" in words[:-1]:
        program = words[words.index("-m") + 1]
    return {"launcher": launcher, "program": program} if program else {}


def jobs_alike(session: Session, traits: Mapping[str, str]) -> frozenset[str]:
    """The jobs whose commands have these traits."""
    rows = session.execute(select(Job.name, Job.command))
    return frozenset(name for name, command in rows if traits_of(command) == dict(traits))
