"""A warm spare: an interpreter of the job that has imported torch, and forks a rank when one has to be started again.

Importing torch takes most of the time that a restart takes. One spare a node serves any number of ranks: each is a fork of it,
with the environment, the folder, the output and the arguments of its own, in a session of its own, and a child of the keeper
(which adopts what its descendants leave behind). CUDA is not touched before the fork. It listens on a Unix socket
(`pitstop.protocol`):

    {"op": "spawn", "argv": [script, ...], "env": {...}, "cwd": "...", "output": "path"}    -> {"ok": true, "pid": 123}
    anything else, or nothing to fork yet                                                   -> {"ok": false, "error": "..."}

    python -c "from pitstop.spare import main; main()" SOCKET
"""

import contextlib
import ctypes
import importlib
import io
import json
import os
import random
import signal
import socket
import sys
import types
from typing import Any, Dict, List, Optional, TextIO

from pitstop import protocol

__all__ = ["main"]

# <sys/prctl.h>
PR_SET_PDEATHSIG = 1

# What training scripts import, and what torch itself imports in their first step: an optimizer's first step alone takes two
# seconds of it. Absent ones are left.
PRELOADED = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
)


def preload() -> None:
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def fork_rank(message: Dict[str, Any]) -> "Optional[int]":
    """In the spare: the pid of the new process. In that process: None, with everything set for the script to run."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        # The process between ends at once, so that the keeper adopts the rank.
        rank = os.fork()
        if rank:
            os.write(writer, b"%d" % rank)
            os._exit(0)
        os.close(reader)
        os.close(writer)
        become(message)
        return None
    os.close(writer)
    os.waitpid(between, 0)
    with os.fdopen(reader, "rb") as source:
        return int(source.read())


def become(message: Dict[str, Any]) -> None:
    """Turn this fork into the process that was asked for."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(message["env"])
    os.chdir(message["cwd"])
    output = os.open(message["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if message["env"].get("PYTHONUNBUFFERED"):
        sys.stdout = unbuffered(1, sys.stdout)
        sys.stderr = unbuffered(2, sys.stderr)
    # What was seeded at the import of a module is not to be the same in every rank.
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def unbuffered(descriptor: int, like: TextIO) -> TextIO:
    """A text stream that keeps nothing back, as under `python -u`: what a killed rank said last is to be in its log."""
    raw = os.fdopen(descriptor, "wb", 0, closefd=False)
    return io.TextIOWrapper(raw, encoding=like.encoding, errors=like.errors, write_through=True)


def run_script(argv: List[str]) -> None:
    """Run argv[0] as the interpreter would: as module `__main__`, its folder first on the path."""
    script = argv[0]
    sys.argv[:] = argv
    sys.path[:] = [os.path.dirname(os.path.abspath(script)), *(item for item in sys.path if item)]
    # What `pitstop` is to the script, its own path says, as when it was started the first time.
    for name in [name for name in sys.modules if name.split(".")[0] == "pitstop"]:
        del sys.modules[name]
    with open(script, "rb") as source:
        code = compile(source.read(), script, "exec")
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def serve(server: socket.socket) -> List[str]:
    """Answer until this process is a fork that is to run a script: its argv. The spare itself never returns."""
    while True:
        client, _ = server.accept()
        with client:
            client.settimeout(2.0)
            try:
                message = json.loads(client.makefile("rb").readline())
                if message.get("op") != "spawn":
                    raise ValueError("no operation %r" % message.get("op"))
                pid = fork_rank(message)
                if pid is None:
                    server.close()
                    return [str(word) for word in message["argv"]]
                answer: Dict[str, Any] = {"ok": True, "pid": pid}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
                answer = {"ok": False, "error": "%s: %s" % (type(problem).__name__, problem)}
            try:
                client.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                continue


def end_with_parent() -> None:
    """Have the kernel end this process when the keeper that started it is killed: nobody else would. Forks do not inherit it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Listen on the Unix socket that the only argument names, once everything is imported."""
    (path,) = sys.argv[1:]
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    run_script(serve(protocol.listen(path)))
