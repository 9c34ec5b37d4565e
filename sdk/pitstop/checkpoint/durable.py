"""Checkpoints on disk: written through torch.distributed.checkpoint, checksummed, published once durable, kept and retired.

    FOLDER/latest                          {"step", "generation", "name"}, replaced whole under FOLDER/latest.lock
    FOLDER/step-000000000010-g3/           one checkpoint: step 10 as saved under generation 3
        rank0/                             rank 0's shard: what FileSystemWriter of torch.distributed.checkpoint wrote
        rank0.json                         its manifest: bytes and CRC-32 of each file; written after they are on disk

A checkpoint is complete when each of its `world` ranks has a manifest. Whoever completes it publishes it: `latest` is compared
with what it was, and never goes to an older generation, nor backwards within one.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import warnings
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from pitstop.checkpoint.staged import Damaged

__all__ = [
    "Checkpoint",
    "Latest",
    "Published",
    "check_shard",
    "checkpoints",
    "flush_shard",
    "publish",
    "read_latest",
    "read_shard",
    "retire",
]

LATEST, LOCK = "latest", "latest.lock"
NAME = re.compile(r"step-(\d{12})-g(\d+)")
CHUNK_BYTES = 1 << 22


class Latest(NamedTuple):
    step: int
    generation: int
    name: str


class Published(NamedTuple):
    """`done`: `latest` now names this checkpoint; `why` where it does not."""

    done: bool
    why: str


class Checkpoint(NamedTuple):
    """One that is on disk. `ranks`: those whose shard is durable."""

    step: int
    generation: int
    name: str
    world: int
    ranks: Tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        return self.world > 0 and set(self.ranks) >= set(range(self.world))


def name_of(step: int, generation: int) -> str:
    return "step-%012d-g%d" % (step, generation)


def sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: str, document: Any) -> None:
    """Replace a JSON file whole, on disk before this returns. Raises OSError; the old one then stands."""
    unfinished = "%s.%d.new" % (path, os.getpid())
    try:
        with open(unfinished, "w") as target:
            json.dump(document, target)
            target.flush()
            os.fsync(target.fileno())
        os.replace(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    sync_folder(os.path.dirname(path))


def file_sum(path: str) -> Tuple[int, int]:
    """(bytes, CRC-32)."""
    size = total = 0
    with open(path, "rb") as source:
        while True:
            part = source.read(CHUNK_BYTES)
            if not part:
                return size, total
            size += len(part)
            total = zlib.crc32(part, total)


def last_cause(problem: BaseException) -> str:
    """What was at the bottom of an exception of torch.distributed.checkpoint: one rank's, as all of ours are."""
    failures = getattr(problem, "failures", None)
    if failures:
        return last_cause(next(iter(failures.values()))[0])
    below = problem.__cause__ or problem.__context__
    return last_cause(below) if below is not None else "%s: %s" % (type(problem).__name__, problem)


def flush_shard(folder: str, step: int, generation: int, rank: int, world: int, tensors: Dict[str, Any]) -> str:
    """Write one rank's shard and its manifest; returns when both are on disk. The checkpoint's folder.

    Raises OSError where it cannot be written: what there was stays, and nothing of it counts.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    place = os.path.join(folder, name_of(step, generation))
    target = os.path.join(place, "rank%d" % rank)
    os.makedirs(place, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target + ".json")
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(target + ".new", ignore_errors=True)
    try:
        writer = dcp.FileSystemWriter(target + ".new", single_file_per_rank=True, sync_files=True, thread_count=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            dcp.save(tensors, storage_writer=writer, no_dist=True)
        sums = {name: file_sum(os.path.join(target + ".new", name)) for name in sorted(os.listdir(target + ".new"))}
        sync_folder(target + ".new")
        os.replace(target + ".new", target)
        write_durably(target + ".json", {"step": step, "generation": generation, "rank": rank, "world": world, "files": sums})
        sync_folder(folder)
    except (CheckpointException, OSError) as problem:
        shutil.rmtree(target + ".new", ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(place)
        raise OSError("not flushed to %s: %s" % (folder, last_cause(problem))) from problem
    return place


def read_manifest(path: str) -> Dict[str, Any]:
    """Raises Damaged."""
    try:
        with open(path) as source:
            document = json.load(source)
        if not isinstance(document["files"], dict) or not isinstance(document["world"], int):
            raise Damaged("not a manifest")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise Damaged("%s: %s" % (os.path.basename(path), problem)) from None
    return dict(document)


def checkpoints(folder: str) -> List[Checkpoint]:
    """All that have a shard, the newest first: by generation, then by step."""
    found = []
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in names:
        parsed = NAME.fullmatch(name)
        if parsed is None:
            continue
        world, ranks = 0, []
        for entry in os.listdir(os.path.join(folder, name)):
            if entry.startswith("rank") and entry.endswith(".json"):
                with contextlib.suppress(Damaged):
                    manifest = read_manifest(os.path.join(folder, name, entry))
                    world = max(world, manifest["world"])
                    ranks.append(int(manifest["rank"]))
        if ranks:
            found.append(Checkpoint(int(parsed[1]), int(parsed[2]), name, world, tuple(sorted(ranks))))
    return sorted(found, key=lambda item: (-item.generation, -item.step))


def check_shard(folder: str, name: str, rank: int) -> None:
    """Raises Damaged unless every byte of the shard is the one that was written."""
    place = os.path.join(folder, name, "rank%d" % rank)
    manifest = read_manifest(place + ".json")
    for file, (size, total) in manifest["files"].items():
        try:
            found = file_sum(os.path.join(place, file))
        except OSError as problem:
            raise Damaged("%s: %s" % (file, problem.strerror)) from None
        if found != (size, total):
            raise Damaged("the checksum of %s/rank%d/%s does not fit" % (name, rank, file))


def read_shard(folder: str, name: str, rank: int) -> Dict[str, Any]:
    """The tensors of a shard by their names. Raises Damaged where a checksum does not fit."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    check_shard(folder, name, rank)
    reader = dcp.FileSystemReader(os.path.join(folder, name, "rank%d" % rank))
    try:
        known = reader.read_metadata().state_dict_metadata
        tensors = {key: torch.empty(item.size, dtype=item.properties.dtype) for key, item in known.items()}
        with warnings.catch_warnings():
            # That it works without a process group is what we want of it.
            warnings.simplefilter("ignore", UserWarning)
            dcp.load(tensors, storage_reader=reader, no_dist=True)
    except (CheckpointException, OSError, AttributeError) as problem:
        raise Damaged("%s/rank%d: %s" % (name, rank, last_cause(problem))) from None
    return tensors


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    descriptor = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_latest(folder: str) -> Optional[Latest]:
    """None where nothing was published. Raises Damaged where the file cannot be read."""
    try:
        with open(os.path.join(folder, LATEST)) as source:
            document = json.load(source)
        return Latest(int(document["step"]), int(document["generation"]), str(document["name"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise Damaged("latest: %s" % problem) from None


def publish(folder: str, found: Checkpoint, generation: Optional[int] = None) -> Published:
    """Let `latest` name a complete checkpoint, unless it names one of a later generation, or a later one of this generation.

    `generation`: of the one who publishes, where it goes back to a checkpoint of an earlier generation. Raises OSError.
    """
    if not found.is_complete:
        missing = sorted(set(range(found.world)) - set(found.ranks))
        return Published(False, "step %d is not durable on ranks %s" % (found.step, missing))
    ours = found.generation if generation is None else generation
    with locked(folder):
        try:
            present = read_latest(folder)
        except Damaged:
            # What cannot be read protects nothing: every complete checkpoint is there beside it.
            present = None
        if present is not None and present.generation > ours:
            return Published(False, "generation %d is over: latest is of %d" % (ours, present.generation))
        if present is not None and present.generation == ours and present.step >= found.step:
            return Published(present.name == found.name, "latest is at step %d already" % present.step)
        document = {"step": found.step, "generation": ours, "name": found.name}
        write_durably(os.path.join(folder, LATEST), document)
    return Published(True, "")


def retire(folder: str, keep: int, keep_every: int = 0) -> List[str]:
    """Remove all but the newest `keep` complete checkpoints, `latest`, and every `keep_every`-th step; the names of the removed.

    What is incomplete goes once a newer one is complete: nobody is still writing it then.
    """
    with locked(folder):
        known = checkpoints(folder)
        complete = [item for item in known if item.is_complete]
        stays = {item.name for item in complete[: max(keep, 1)]}
        stays |= {item.name for item in complete if keep_every and item.step % keep_every == 0}
        with contextlib.suppress(Damaged):
            latest = read_latest(folder)
            stays |= {latest.name} if latest is not None else set()
        removed = []
        for item in known:
            overtaken = bool(complete) and (item.generation, item.step) < (complete[0].generation, complete[0].step)
            if item.name not in stays and (item.is_complete or overtaken):
                # Without its manifests it counts for nobody, however far the removal gets.
                for rank in item.ranks:
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(folder, item.name, "rank%d.json" % rank))
                shutil.rmtree(os.path.join(folder, item.name), ignore_errors=True)
                removed.append(item.name)
        return removed
