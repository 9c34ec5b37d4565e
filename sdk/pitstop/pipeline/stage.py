"""One stage of a model with backward in two: B gives the gradient of the input, W those of the weights, later.

Linear layers are deferred: their B keeps (input, gradient of the output), their W is one product. Parameters of other layers
(norms, embeddings) are few and take their gradients in B.
"""

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch

__all__ = ["Stage"]

Tape = List[Tuple[torch.nn.Linear, torch.Tensor, torch.Tensor]]


class _DeferredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, linear: torch.nn.Linear, tape: Tape) -> torch.Tensor:
        ctx.save_for_backward(given)
        ctx.linear, ctx.tape = linear, tape
        return torch.nn.functional.linear(given, linear.weight, linear.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Tuple[torch.Tensor, None, None]:
        (given,) = ctx.saved_tensors
        (gradient,) = gradients
        ctx.tape.append((ctx.linear, given.detach(), gradient.detach()))
        return gradient @ ctx.linear.weight, None, None


class Stage:
    """Runs F, B and W of micro-batches in any order that a plan gives; counts the activations it holds."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.parameters: List[torch.nn.Parameter] = list(module.parameters())
        deferred: Set[int] = set()
        self._tape: Tape = []
        for layer in module.modules():
            if type(layer) is torch.nn.Linear:
                deferred.update(id(parameter) for parameter in layer.parameters())
                self._defer(layer)
        self._direct = [parameter for parameter in self.parameters if id(parameter) not in deferred]
        self._graphs: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}
        self._tapes: Dict[int, Tape] = {}
        self.peak = 0

    def _defer(self, layer: torch.nn.Linear) -> None:
        layer.forward = lambda given: _DeferredLinear.apply(given, layer, self._tape)

    def begin(self) -> None:
        """Forget what an iteration left; gradients start from zero, also on a worker that has no micro-batch."""
        self._graphs.clear()
        self._tapes.clear()
        self.peak = 0
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def forward(self, batch: int, given: torch.Tensor, loss: Optional[Callable[[torch.Tensor], torch.Tensor]]) -> torch.Tensor:
        """The stage's output for micro-batch `batch`, detached; with `loss`, its value."""
        if given.is_floating_point():
            # Deferred layers hide their weights from autograd: without this the first stage would have no graph.
            given = given.detach().requires_grad_(True)
        self._tape = self._tapes.setdefault(batch, [])
        output = self.module(given)
        if loss is not None:
            output = loss(output)
        self._graphs[batch] = (given, output)
        self.peak = max(self.peak, len(self._tapes))
        return output.detach()

    def backward(self, batch: int, gradient: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        """B: the gradient of the input (None for inputs that have none, as tokens)."""
        given, output = self._graphs.pop(batch)
        wanted = [given, *self._direct] if given.requires_grad else self._direct
        found = torch.autograd.grad(output, wanted, gradient, allow_unused=True)
        for parameter, value in zip(self._direct, found[len(found) - len(self._direct) :]):
            if value is not None and parameter.grad is not None:
                parameter.grad += value
        return found[0] if given.requires_grad else None

    def weight(self, batch: int) -> None:
        """W: add the deferred gradients of micro-batch `batch`, and let its activations go."""
        with torch.no_grad():
            for linear, given, gradient in self._tapes.pop(batch):
                rows = gradient.reshape(-1, gradient.shape[-1])
                if linear.weight.grad is not None:
                    linear.weight.grad += rows.t() @ given.reshape(-1, given.shape[-1])
                if linear.bias is not None and linear.bias.grad is not None:
                    linear.bias.grad += rows.sum(dim=0)
