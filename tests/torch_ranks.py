"""Ranks as processes with torch loaded already: forked from a server that imported it once, which takes milliseconds."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["context", "start_rank"]

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch._dynamo", "torch.distributed.checkpoint", "numpy", "pitstop.elastic.training"])


def _run(environment: Mapping[str, str], function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*arguments)


def start_rank(function: Callable[..., None], *arguments: Any, **environment: str) -> BaseProcess:
    """Run `function` (of an importable module) in a process of its own, with these variables added to its environment."""
    process = context.Process(target=_run, args=(environment, function, arguments), daemon=True)
    process.start()
    return process
