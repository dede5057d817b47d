"""One optimizer step's forward and backward: micro-batches, delayed reduction, the global mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import UsageError
from parastrat.runtime.communication.told import Told
from parastrat.runtime.logits import logits_divided
from parastrat.runtime.pipeline.keeping import raise_together
from parastrat.runtime.precision import COMPUTE
from parastrat.runtime.tensors.batches import called, micro_batches, to_device
from parastrat.runtime.tensors.leaves import as_tree, tensors_in
from parastrat.runtime.training.counted import check_mean, counted, setting_of
from parastrat.runtime.training.explained import explained
from parastrat.runtime.training.summed import refuse_sum
from parastrat.runtime.wrapped import Wrapped, inner
from parastrat.runtime.wrapping import Wrapping, wrapping_of

if TYPE_CHECKING:
    from parastrat.runtime.pipeline.pipelined import Pipeline

LossFunction = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One micro-batch on this rank."""

    inputs: Any
    targets: Any
    #: targets that its mean loss divides by; 0 for one that only keeps step with the other ranks
    count: int


def forward_backward(
    model: nn.Module, inputs: Any, targets: Any = None, *, loss_fn: LossFunction | None = None
) -> torch.Tensor:
    """Run forward and backward of this rank's share of one optimizer step.

    Splits the share into the plan's micro-batches. DDP reduces gradients with the last one; FSDP2 reduces
    into shards with each, since whole gradients would not fit, and HSDP joins its replicas with the last.
    Gradients are those of the mean loss over all targets of the global batch, however unevenly ranks and
    micro-batches hold them. Under fp16-mixed the loss is scaled and gradients are divided again; if any
    overflows, all gradients become None, so that ``optimizer.step()`` changes nothing. Under tp alone
    parameters without hooks of their own get their gradients at the end of the step.

    Args:
        model: What ``auto_parallelize`` returned.
        inputs: Tensor, tuple or mapping for the forward; first dimension: samples.
        targets: What ``loss_fn`` compares with; without ``loss_fn`` they are passed on as ``labels``.
        loss_fn: ``loss_fn(output, targets)``, the mean over all targets but those equal to its
            ``ignore_index`` (-100 without one); the same code on all ranks, as reading divided logits may
            gather them. None: that of ``auto_parallelize``; else the output has ``.loss``, such a mean.

    Returns:
        The mean loss over the global batch, the same on every rank; without gradient.

    Raises:
        UsageError: for a share that the plan does not have, or a loss that is no mean.
        MismatchError: if another rank failed, naming it, and with what.
    """
    with Told():
        return _step(model, inputs, targets, loss_fn or wrapping_of(model).loss_fn)


def _step(model: nn.Module, inputs: Any, targets: Any, loss_fn: LossFunction | None) -> torch.Tensor:
    wrapping, inputs = wrapping_of(model), as_tree(inputs)
    check_mean(loss_fn, wrapping.plan.mesh.dp * wrapping.plan.gradient_accumulation_steps)
    if loss_fn is None and targets is not None:
        inputs, targets = _with_labels(inputs, targets), None
    ignored = setting_of(loss_fn, "ignore_index")
    shares = [
        _Share(inputs=part[0], targets=part[1], count=counted(inner(model), part[0], part[1], ignored))
        for part in micro_batches((inputs, targets), wrapping.plan)
    ]
    if wrapping.mixing is not None:
        wrapping.mixing.begins()
    total = _over_ranks(sum(share.count for share in shares), wrapping)
    rounds = wrapping.plan.gradient_accumulation_steps
    # a rank with fewer samples keeps step with the others: their collectives need it
    shares += [replace(shares[0], count=0)] * (rounds - len(shares))
    summed = torch.zeros((), device=wrapping.device)
    if wrapping.loss_scale is not None:
        wrapping.loss_scale.scale_earlier_(model)
    wrapping.stepping = True
    try:
        with completing(wrapping), explained(wrapping):
            if wrapping.pipeline is not None:
                summed += _through(wrapping.pipeline, shares, total, loss_fn)
            else:
                for index, share in enumerate(shares):
                    with reducing(model, last=index == rounds - 1):
                        summed += _one(model, share, total, loss_fn)
    finally:
        wrapping.stepping = False
    if wrapping.loss_scale is not None:
        wrapping.loss_scale.unscale_(model)
    if wrapping.pipeline is None:
        wrapping.mesh.sum_over_data(summed)
    if wrapping.replicas is not None:
        wrapping.replicas.stepped(summed)
    if wrapping.mixing is not None:
        wrapping.mixing.ended()
    return summed


def _one(model: nn.Module, share: _Share, total: int, loss_fn: LossFunction | None) -> torch.Tensor:
    """Run one micro-batch; return its part of the global mean loss."""
    wrapping = wrapping_of(model)
    with dividing_logits(wrapping):
        output = called(model, to_device(share.inputs, wrapping.device))
        loss = _loss(wrapping, share, output, _Mean(total=total, loss_fn=loss_fn))
    if wrapping.reached is not None:
        wrapping.reached.by_loss(loss.objective)
    loss.objective.backward()  # type: ignore[no-untyped-call]
    return loss.part()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean:
    """The loss that is differentiated."""

    #: targets of the global batch
    total: int
    loss_fn: LossFunction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """The loss of one micro-batch."""

    #: mean over the micro-batch's own targets
    mean: torch.Tensor
    #: its share of the targets of the global batch
    weight: float
    #: what is differentiated: weighted, and scaled for what follows
    objective: torch.Tensor

    def part(self) -> torch.Tensor:
        """Return its part of the global mean loss; without gradient."""
        return self.mean.detach().float() * self.weight


def _through(
    pipeline: Pipeline, shares: list[_Share], total: int, loss_fn: LossFunction | None
) -> torch.Tensor:
    """Run all micro-batches through a pipeline; return the global mean loss."""
    wrapping, mean = pipeline.wrapping, _Mean(total=total, loss_fn=loss_fn)
    summed = torch.zeros((), device=wrapping.device)

    def loss_of(index: int, output: Any) -> torch.Tensor:
        loss = _loss(wrapping, shares[index], output, mean)
        summed.add_(loss.part())
        return loss.objective

    with dividing_logits(wrapping):
        failure = pipeline.step([to_device(share.inputs, wrapping.device) for share in shares], loss_of)
    if failure is not None:
        summed.fill_(torch.nan)
    pipeline.sum_over_stages(summed)  # all but the last stage's rank add nothing
    wrapping.mesh.sum_over_data(summed)
    raise_together(failure, summed)
    return summed


def dividing_logits(wrapping: Wrapped) -> AbstractContextManager[None]:
    """Leave logits divided up to the loss where that was proven."""
    by_vocabulary = wrapping.layout is not None and wrapping.layout.loss
    divided = by_vocabulary or (wrapping.division is not None and wrapping.division.loss)
    return logits_divided() if divided else nullcontext()


def _loss(wrapping: Wrapped, share: _Share, output: Any, mean: _Mean) -> _Loss:
    """Return the loss of one micro-batch from the model's output."""
    if share.count == 0:
        loss, weight = _nothing(output), 0.0
    else:
        with _loss_precision(wrapping):
            if mean.loss_fn is None:
                loss = _own_loss(output)
            else:
                targets = to_device(share.targets, wrapping.device)
                refuse_sum(wrapping, mean.loss_fn, output, targets)
                loss = mean.loss_fn(output, targets)
        weight = share.count / mean.total
    scale = 1.0 if wrapping.loss_scale is None else wrapping.loss_scale.scale
    # reduction averages over the data-parallel ranks; the weights already add up to one over all of them
    objective = loss.float() * (weight * wrapping.plan.mesh.dp * scale)
    return _Loss(mean=loss, weight=weight, objective=objective)


def _own_loss(output: Any) -> torch.Tensor:
    """Return the loss that a model computed.

    Raises:
        UsageError: if its output has none by that name.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    raise UsageError(
        f"there is no loss_fn, and the model returned {type(output).__name__} without a loss in it",
        hint="pass loss_fn=: lambda output, targets: output[1] where the model returns (logits, loss)",
    )


def _nothing(output: Any) -> torch.Tensor:
    """Return a zero that depends on the whole output: backward runs all its collectives, adding nothing."""
    leaves = [leaf for leaf in tensors_in(output) if leaf.requires_grad and leaf.ndim]
    if not leaves:
        raise UsageError(
            "a micro-batch without targets, of a model that returns nothing but its loss",
            hint="let the model return its logits too, or leave such samples out",
        )
    return torch.stack([(leaf * 0).float().sum() for leaf in leaves]).sum()


def _with_labels(inputs: Any, targets: Any) -> dict[str, Any]:
    if not isinstance(inputs, dict):
        raise UsageError(
            "targets without loss_fn, and inputs are not a dict",
            hint='pass loss_fn=, or inputs as a dict with "labels" for a model that computes its loss',
        )
    return {**inputs, "labels": targets}


def _over_ranks(count: int, wrapping: Wrapping) -> int:
    """Return the targets of the global batch; at least one, so that nothing divides by zero."""
    if wrapping.mesh.data is None:
        return max(count, 1)
    total = torch.tensor(count, device=wrapping.device)
    wrapping.mesh.sum_over_data(total)
    return max(int(total.item()), 1)


def _loss_precision(wrapping: Wrapped) -> AbstractContextManager[Any]:
    """Compute the loss as inside of autocast, where cross entropy takes short logits to fp32."""
    dtype = COMPUTE.get(wrapping.plan.precision)
    return nullcontext() if dtype is None else torch.autocast(wrapping.device.type, dtype)


@contextmanager
def completing(wrapping: Wrapping) -> Iterator[None]:
    """Complete the gradients of a step behind the backwards inside."""
    with (
        nullcontext() if wrapping.sums is None else wrapping.sums.at_the_end(),
        nullcontext() if wrapping.leaves is None else wrapping.leaves.during(),
        nullcontext() if wrapping.unused is None else wrapping.unused.dropped(),
        nullcontext() if wrapping.scalars is None else wrapping.scalars.averaged(),
    ):
        yield


@contextmanager
def reducing(model: nn.Module, *, last: bool) -> Iterator[None]:
    """Delay to the last micro-batch what reduction can be delayed."""
    if isinstance(model, FSDPModule):
        # torch walks over all modules to say so, in each micro-batch
        replicated = wrapping_of(model).plan.mesh.dp_replicate > 1
        model.set_is_last_backward(last)
        if replicated:
            model.set_requires_all_reduce(last)
        try:
            yield
        finally:
            model.set_is_last_backward(True)
            if replicated:
                model.set_requires_all_reduce(True)
        return
    with model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext():
        yield
