"""This rank's plain values of parameters that are DTensors, as forwards compute with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from parastrat.errors import WrapError


class Leaves:
    """Plain values that stand for one model's parameters while a step runs.

    Each use of a weight adds its gradient up as plain tensors do; at the end of the step these become the
    parameters' own, in the layout of each. A parameter with hooks is left out: they fire on its gradients.

    Args:
        module: divided; no data axis, and no pipeline, looks for gradients during backward.
    """

    #: of the step that is running
    running: Leaves | None = None

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._leaves: dict[int, torch.Tensor] = {}

    @contextmanager
    def during(self) -> Iterator[None]:
        """Let ``own_values`` return leaves; add their gradients to the parameters' once behind."""
        stood_for = [parameter for parameter in self._module.parameters() if _is_free(parameter)]
        self._leaves = {id(parameter): _leaf(parameter) for parameter in stood_for}
        Leaves.running = self
        try:
            yield
            for parameter in stood_for:
                _add(parameter, self._leaves[id(parameter)].grad)
        finally:
            Leaves.running = None
            self._leaves = {}

    def of(self, parameter: DTensor) -> torch.Tensor | None:
        """Return what stands for a parameter; None where nothing does."""
        return self._leaves.get(id(parameter))


class GatheredLeaves(Leaves):
    """Plain values that stand for parameters which FSDP2 gathers, from step to step.

    FSDP2 keeps the tensor that it gathers into, so that its leaf stays, too; and it reduces a unit as the
    unit's backward ends, so that a gradient becomes the parameter's as soon as it is whole.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        #: by the identity of a gathered parameter: itself, so that no other can have it, what it consists
        #: of, and its leaf
        self._gathered: dict[int, tuple[DTensor, torch.Tensor, torch.Tensor]] = {}

    @contextmanager
    def during(self) -> Iterator[None]:
        """Let ``own_values`` return leaves."""
        Leaves.running = self
        try:
            yield
        finally:
            Leaves.running = None

    def of(self, parameter: DTensor) -> torch.Tensor | None:
        """Return what stands for a parameter; None where it is not trained, or has hooks."""
        if not (torch.is_grad_enabled() and _is_free(parameter)):
            return None
        own = parameter._local_tensor  # noqa: SLF001  (what a layout consists of)
        known = self._gathered.get(id(parameter))
        if known is not None and known[1] is own:
            # another tensor each time: recurrent layers tell by identity whether a weight was set anew
            return known[2].view_as(own)
        if not own.is_contiguous():
            return None
        leaf = _leaf(parameter)
        leaf.register_post_accumulate_grad_hook(partial(_hand_over, parameter))  # type: ignore[no-untyped-call]
        self._gathered[id(parameter)] = parameter, own, leaf
        return leaf.view_as(own)


def own_values(parameter: DTensor) -> torch.Tensor:
    """Return this rank's plain values of a parameter, which its gradients find back."""
    if torch.compiler.is_compiling():
        own: torch.Tensor = parameter.to_local()
        return own
    leaf = None if Leaves.running is None else Leaves.running.of(parameter)
    if leaf is not None:
        return leaf
    if not parameter._local_tensor.is_contiguous():  # noqa: SLF001  (what a layout consists of)
        stored: torch.Tensor = differentiated_once(parameter.to_local())
        return stored
    values: torch.Tensor = _OwnShare.apply(parameter)  # type: ignore[no-untyped-call]
    return values


def differentiated_once(tensor: Any) -> Any:
    """Return a tensor whose gradient cannot be differentiated again: torch takes it for a constant."""
    if tensor.requires_grad:
        tensor.register_hook(_refuse_second)
    return tensor


def _refuse_second(gradient: torch.Tensor) -> None:
    if torch.is_grad_enabled() and gradient.requires_grad:
        raise WrapError(
            "create_graph=True asks for gradients of gradients, and torch's DTensors leave their own out "
            "of the graph",
            hint="leave the term out, or plan without tensor parallelism: parastrat recommend --tp 1",
        )


class _OwnShare(torch.autograd.Function):
    """A parameter's values on this rank; the gradient is divided as the parameter is.

    ``to_local`` does the same, and works out the gradient's layout anew for every use of every weight.
    """

    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> torch.Tensor:
        ctx.parameter, own = parameter._spec, parameter._local_tensor  # noqa: SLF001
        return own.view_as(own)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> DTensor:
        spec, gradient = ctx.parameter, gradients[0].contiguous()
        if torch.is_grad_enabled() and gradient.requires_grad:
            # as a script asks that differentiates it again; ``from_local`` alone lets it
            known: DTensor = differentiated_once(
                DTensor.from_local(
                    gradient,
                    spec.mesh,
                    spec.placements,
                    run_check=False,
                    shape=spec.shape,
                    stride=spec.stride,
                )
            )
            return known
        return _divided_as(spec, gradient)


def _divided_as(spec: Any, gradient: torch.Tensor) -> DTensor:
    """Return the gradient of plain values as that of the parameter."""
    if isinstance(gradient, DTensor):
        # where activations are DTensors, they took the values for a whole tensor
        if any(placement.is_shard() for placement in spec.placements):
            raise RuntimeError("a share of a weight met activations that know the whole")
        return gradient.redistribute(placements=spec.placements)
    return DTensor(_unshared(gradient), spec, requires_grad=False)  # type: ignore[no-untyped-call]


#: what is within gradients that were handed over, as long as they live, by their memory
_handed_over: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


def _unshared(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient that no other parameter has as its own: a sum hands the same one to all its terms.

    Of plain tensors torch sees that, and copies. It does not look into a DTensor, and whatever changes
    gradients in place, such as ``clip_grad_norm_``, would change one as often as parameters have it.
    """
    if torch.compiler.is_compiling():
        return gradient
    memory = gradient.untyped_storage()._cdata  # noqa: SLF001  (no public identity)
    if memory in _handed_over:
        gradient = gradient.clone()
        memory = gradient.untyped_storage()._cdata  # noqa: SLF001
    _handed_over[memory] = gradient
    return gradient


def _is_free(parameter: torch.Tensor) -> bool:
    """Return whether nothing but the end of the step waits for a parameter's gradient."""
    hooks = parameter._backward_hooks or parameter._post_accumulate_grad_hooks  # noqa: SLF001
    return isinstance(parameter, DTensor) and parameter.requires_grad and not hooks


def _leaf(parameter: Any) -> torch.Tensor:
    leaf: torch.Tensor = parameter._local_tensor.detach().requires_grad_()  # noqa: SLF001
    return leaf


def _hand_over(parameter: Any, leaf: torch.Tensor) -> None:
    """Let a leaf's gradient be its parameter's."""
    _add(parameter, leaf.grad)
    leaf.grad = None


def _add(parameter: Any, gradient: torch.Tensor | None) -> None:
    if gradient is None:
        return
    # as the engine casts what it adds up: FSDP2 of torch 2.15 wants it in fp32 beside weights in 16 bits
    wanted = getattr(parameter, "grad_dtype", None)
    if wanted is not None:
        gradient = gradient.to(wanted)
    known = _divided_as(parameter._spec, gradient)  # noqa: SLF001
    parameter.grad = known if parameter.grad is None else parameter.grad.add_(known)
