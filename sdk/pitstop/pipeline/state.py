"""What a stage knows: parameters and optimizer state, with an exact way back over the last step, and as bytes for a peer."""

import copy
import io
from typing import Any, Dict, List, Optional

import torch

__all__ = ["StageState"]


class StageState:
    """`done` iterations are in the parameters. One step can be taken back, bit for bit: a copy from before it is kept."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.module, self.optimizer = module, optimizer
        self.done = 0
        # Whether the last step's gradients were not finite.
        self.doubtful = False
        self._before: Optional[Dict[str, Any]] = None

    def _tensors(self) -> List[torch.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]

    def _copied(self) -> Dict[str, Any]:
        return {
            "tensors": [tensor.detach().clone() for tensor in self._tensors()],
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "done": self.done,
        }

    def _restore(self, kept: Dict[str, Any]) -> None:
        with torch.no_grad():
            for tensor, value in zip(self._tensors(), kept["tensors"]):
                tensor.copy_(value)
        self.optimizer.load_state_dict(copy.deepcopy(kept["optimizer"]))
        self.done = kept["done"]

    def step(self, finite: bool) -> None:
        """Step at once; whether all stages agree is known later. Gradients that are not finite change nothing."""
        self._before = self._copied()
        self.doubtful = not finite
        if finite:
            self.optimizer.step()
        self.done += 1

    @property
    def reversible(self) -> bool:
        return self._before is not None

    def skip(self) -> None:
        """Undo the last step but count its iteration: some stage could not take it."""
        done = self.done
        self.back()
        self.done = done

    def back(self) -> None:
        """To before the last step. Raises RuntimeError where there is no way back."""
        if self._before is None:
            raise RuntimeError("only the last step can be taken back")
        self._restore(self._before)
        self._before, self.doubtful = None, False

    def pack(self) -> torch.Tensor:
        """One tensor of bytes with all of it, for one copy to a peer."""
        content = io.BytesIO()
        torch.save(self._copied(), content)
        return torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)

    def unpack(self, content: torch.Tensor) -> None:
        self._restore(torch.load(io.BytesIO(content.cpu().numpy().tobytes()), weights_only=True))
        self._before = None
