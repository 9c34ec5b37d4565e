"""State to bytes and back: structure by pickle, tensors by reference, so that each tensor is copied once and nothing else is
walked.

A part of a state is anything with `state_dict()` and `load_state_dict()`. Shared parts are equal on all data-parallel ranks
(model, optimizer, data position); own parts differ by rank (random generators).
"""

import ctypes
import io
import json
import pickle
import random
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

import torch

from pitstop.checkpoint.staged import ALIGNMENT, HEADER_SIZE, WRITING, Damaged, Header, Slot, aligned, read_index

__all__ = [
    "Content",
    "Plan",
    "RandomState",
    "contents_of",
    "copy_into",
    "decode",
    "encode",
    "parts_of",
    "plan_of",
    "split_states",
]

SHARED, OWN = "shared", "own"


class Content(NamedTuple):
    """One part: its pickled structure and the tensors that it refers to, in order."""

    skeleton: bytes
    tensors: List["torch.Tensor"]


class Plan(NamedTuple):
    """Where everything of a state goes in a slot."""

    head: bytes
    skeletons: bytes
    tensors: List["torch.Tensor"]
    offsets: List[int]
    data_bytes: int

    @property
    def size(self) -> int:
        return aligned(HEADER_SIZE + len(self.head) + len(self.skeletons)) + self.data_bytes


class Structure(pickle.Pickler):
    """Pickles everything but the tensors."""

    def __init__(self, target: io.BytesIO) -> None:
        super().__init__(target, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: List[torch.Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
            raise TypeError(
                "a %s cannot be staged: give a state of plain tensors (of a DTensor its to_local())" % type(value).__name__
            )
        self.tensors.append(value.detach())
        return len(self.tensors) - 1


class Filled(pickle.Unpickler):
    """Unpickles a structure with its tensors put back."""

    def __init__(self, content: Content) -> None:
        super().__init__(io.BytesIO(content.skeleton))
        self._tensors = content.tensors

    def persistent_load(self, number: Any) -> Any:
        # A clone: optimizers keep what they are given, and the memory that it was read from goes.
        return self._tensors[number].clone()


def encode(state: Any) -> Content:
    """Raises TypeError for a tensor that is more than memory with a shape."""
    target = io.BytesIO()
    structure = Structure(target)
    structure.dump(state)
    return Content(target.getvalue(), structure.tensors)


def decode(content: Content) -> Any:
    """Only of content whose checksums fit: unpickling runs what it is told to."""
    return Filled(content).load()


def plan_of(parts: Mapping[str, Content]) -> Plan:
    """`parts`: SHARED and OWN."""
    entries: List[Dict[str, Any]] = []
    tensors: List[torch.Tensor] = []
    offsets: List[int] = []
    end = 0
    for name, content in parts.items():
        for tensor in content.tensors:
            size = tensor.numel() * tensor.element_size()
            dtype = str(tensor.dtype).partition(".")[2]
            entries.append({"part": name, "dtype": dtype, "shape": list(tensor.shape), "offset": end, "bytes": size})
            tensors.append(tensor)
            offsets.append(end)
            end += -(-size // ALIGNMENT) * ALIGNMENT
    skeletons = {name: len(content.skeleton) for name, content in parts.items()}
    index = json.dumps({"skeletons": skeletons, "tensors": entries}).encode()
    return Plan(index, b"".join(content.skeleton for content in parts.values()), tensors, offsets, end)


def copy_into(slot: Slot, plan: Plan, header: Header) -> None:
    """Stage a state: the one thing that training waits for."""
    header = header._replace(
        phase=WRITING, index_bytes=len(plan.head), skeleton_bytes=len(plan.skeletons), data_bytes=plan.data_bytes
    )
    slot.begin(header, plan.head, plan.skeletons)
    whole = torch.frombuffer(slot.buffer, dtype=torch.uint8)
    base, address = header.data_offset, slot.address
    asynchronous = False
    for tensor, offset in zip(plan.tensors, plan.offsets):
        size = tensor.numel() * tensor.element_size()
        if size and is_plain(tensor):
            # As fast again as Tensor.copy_: it writes past the caches.
            ctypes.memmove(address + base + offset, tensor.data_ptr(), size)
        elif size:
            target = whole[base + offset : base + offset + size].view(tensor.dtype).view(tensor.shape)
            target.copy_(tensor, non_blocking=tensor.is_cuda)
            asynchronous = asynchronous or tensor.is_cuda
    if asynchronous:
        torch.cuda.synchronize()
    slot.finish(header)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes lie in host memory as they are."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def contents_of(buffer: Any, header: Header) -> Dict[str, Content]:
    """The parts in a slot's memory; the tensors are views into it. Raises Damaged."""
    view = memoryview(buffer)
    index = read_index(view, header)
    at = HEADER_SIZE + header.index_bytes
    parts: Dict[str, Content] = {}
    whole = torch.frombuffer(buffer, dtype=torch.uint8)
    for name, size in index["skeletons"].items():
        parts[name] = Content(bytes(view[at : at + size]), [])
        at += size
    for entry in index["tensors"]:
        start = header.data_offset + entry["offset"]
        dtype = getattr(torch, entry["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise Damaged("no such type: %s" % entry["dtype"])
        if entry["bytes"]:
            tensor = whole[start : start + entry["bytes"]].view(dtype).view(entry["shape"])
        else:
            tensor = torch.empty(entry["shape"], dtype=dtype)
        parts[entry["part"]].tensors.append(tensor)
    return parts


class RandomState:
    """The random generators of this process: Python's, NumPy's where it is loaded, torch's, and each GPU's."""

    def state_dict(self) -> Dict[str, Any]:
        state: Dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            state["numpy"] = numpy.random.get_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
        numpy = sys.modules.get("numpy")
        if numpy is not None and "numpy" in state:
            numpy.random.set_state(state["numpy"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])


def split_states(state: Mapping[str, Any], own: "Tuple[str, ...]") -> Dict[str, Content]:
    """The parts SHARED and OWN of what `state_dict()` of each member says now."""
    return {
        SHARED: encode({name: member.state_dict() for name, member in state.items() if name not in own}),
        OWN: encode({name: member.state_dict() for name, member in state.items() if name in own}),
    }


def parts_of(tensors: Dict[str, torch.Tensor]) -> Dict[str, Content]:
    """A shard's tensors by part. Raises Damaged."""
    parts: Dict[str, Content] = {}
    for name in (SHARED, OWN):
        skeleton = tensors.get(name + ".skeleton")
        if skeleton is None:
            continue
        count = sum(key.startswith(name + ".") for key in tensors) - 1
        try:
            found = [tensors["%s.%d" % (name, number)] for number in range(count)]
        except KeyError as problem:
            raise Damaged("tensor %s is missing" % problem) from None
        parts[name] = Content(skeleton.numpy().tobytes(), found)
    return parts
