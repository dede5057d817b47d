"""Buffers that a forward changes, such as running statistics: rank 0's, on every rank.

Each rank's forward sees its own samples, so their buffers drift apart. Rank 0's count, as under DDP: FSDP2
leaves buffers alone, and ``torch.distributed.checkpoint`` keeps each from whichever rank writes least.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from parastrat.runtime.training.compared import differing
from parastrat.runtime.training.messages import in_messages
from parastrat.runtime.wrapping import inner, wrapping_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from parastrat.runtime.mesh import RankMesh
    from parastrat.runtime.wrapping import Wrapping


def has_changing_buffers(module: nn.Module) -> bool:
    """Return whether a checkpoint has buffers: those may change, the others are constants."""
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    return not buffers.isdisjoint(module.state_dict(keep_vars=True))


def follow_first_rank(model: nn.Module, wrapping: Wrapping) -> None:
    """Send rank 0's buffers to all ranks before each forward that follows one in training.

    That is what DDP does by itself, and what a sharded model needs as much.
    """
    if not has_changing_buffers(model):
        return
    drifted = False

    def before(_module: nn.Module, _args: tuple[Any, ...]) -> None:
        nonlocal drifted
        if drifted:
            _send(model, wrapping.mesh)
            drifted = False

    def after(module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        nonlocal drifted
        # with gradients on, a part may train while the whole is said to be in eval mode
        drifted = drifted or module.training or torch.is_grad_enabled()

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after)
    wrapping.calls.append("# rank 0's buffers are sent before a forward that follows training, as by DDP")


class OwnBuffers:
    """Tells once of buffers that follow each rank's own samples, but for running statistics of norms.

    Codebooks, centres and queues are rank 0's then, which has seen a part of the samples.

    Args:
        model: wrapped, with data ranks.
        wrapping: of it.
    """

    def __init__(self, model: nn.Module, wrapping: Wrapping) -> None:
        module = inner(model)
        self._wrapping = wrapping
        self._places = changeable(module) if has_changing_buffers(module) else []
        self._names = {id(part): name for name, part in module.named_modules()}

    def compare(self) -> None:
        """Compare them behind a forward that may have changed them; all data ranks call it."""
        held = [(part, key, part._buffers.get(key)) for part, key in self._places]  # noqa: SLF001  (may be gone)
        named = [(f"{self._names[id(part)]}.{key}".lstrip("."), buffer) for part, key, buffer in held]
        mesh = self._wrapping.mesh
        if name := differing(named, self._wrapping.device, mesh.data_group):
            self._places = []
            warnings.warn(
                f"{name} differs between data-parallel ranks behind a step: each forward changes it by its "
                "own rank's samples, and rank 0's is kept for all; reduce what it is made of over ranks by "
                "torch.distributed.all_reduce, as one process would see all samples",
                stacklevel=2,
            )


def equalise_buffers(model: nn.Module) -> None:
    """Give all ranks rank 0's buffers now; all ranks call it.

    Args:
        model: What ``auto_parallelize`` returned.
    """
    module, mesh = inner(model), wrapping_of(model).mesh
    if mesh.data is not None and has_changing_buffers(module):
        _send(module, mesh)


def _send(module: nn.Module, mesh: RankMesh) -> None:
    """Broadcast all buffers from rank 0.

    A backward may be pending, as between the micro-batches of a pipeline. Those of batch normalisation do
    not read what they saved of running statistics, so these change unseen by autograd; others do not, and
    are written to only where they differ: most are constants, such as masks and angles.
    """
    statistics = {
        id(buffer) for norm in norms_with_statistics(module) if norm.training for buffer in norm.buffers()
    }
    held = [buffer for buffer in module.buffers() if not buffer.is_meta]
    waited_for = [] if mesh.pp is None else [buffer for buffer in held if id(buffer) not in statistics]
    sent = [buffer.clone() for buffer in waited_for]
    others = [buffer for buffer in held if id(buffer) in statistics or mesh.pp is None]
    unseen = [buffer.data if id(buffer) in statistics else buffer for buffer in others]
    in_messages([*unseen, *sent], mesh.from_first)
    for buffer, values in zip(waited_for, sent, strict=True):
        # of a dry run's tensors nobody knows the values; on all its ranks they are those of the first
        if not isinstance(buffer, FakeTensor) and not torch.equal(buffer, values):
            buffer.copy_(values)


def norms_with_statistics(module: nn.Module) -> list[nn.Module]:
    """Return the normalisations that keep running statistics."""
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    return [norm for norm in norms if norm.running_mean is not None]


@contextmanager
def still_statistics(module: nn.Module) -> Iterator[None]:
    """Let no batch normalisation count its batch: a recomputed forward has been counted before."""
    norms = [part for part in norms_with_statistics(module) if isinstance(part, _BatchNorm)]
    held = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm, _, _ in held:
            # not track_running_stats: autograd would save other tensors than in the first forward
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, momentum, counted in held:
            norm.momentum, norm.num_batches_tracked = momentum, counted


class Replayed:
    """Gives a recomputed forward the buffers that the first one began with, and keeps what that left.

    Codebooks that follow their samples and counters would otherwise move twice, and the recomputed forward
    would read what later micro-batches made of them. Norms with running statistics are not among them.
    """

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        #: what training has been seen to change; None before the first forward
        self._changing: list[tuple[nn.Module, str]] | None = None

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return what the forward and the one after it run in."""
        begun: dict[tuple[nn.Module, str], torch.Tensor] = {}
        return self._noticing(begun), self._given(begun)

    @contextmanager
    def _noticing(self, begun: dict[tuple[nn.Module, str], torch.Tensor]) -> Iterator[None]:
        places = changeable(self._block) if self._changing is None else self._changing
        held = {(owner, key): owner.get_buffer(key) for owner, key in places}
        known = {place: (buffer.clone(), buffer._version) for place, buffer in held.items()}  # noqa: SLF001  (no public counter)
        yield
        for place, (values, version) in known.items():
            buffer = place[0].get_buffer(place[1])
            if buffer is not held[place] or buffer._version != version:  # noqa: SLF001  (as above)
                begun[place] = values
        if self._changing is None and self._block.training:
            self._changing = list(begun)

    @contextmanager
    def _given(self, begun: dict[tuple[nn.Module, str], torch.Tensor]) -> Iterator[None]:
        now = {(owner, key): owner.get_buffer(key) for owner, key in begun}
        for (owner, key), values in begun.items():
            owner._buffers[key] = values.clone()  # noqa: SLF001  (setattr may have side effects)
        try:
            yield
        finally:
            for (owner, key), buffer in now.items():
                owner._buffers[key] = buffer  # noqa: SLF001  (as above)


def changeable(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the buffers, by owner and name, but for those of norms with running statistics."""
    norms = {id(norm) for norm in norms_with_statistics(module)}
    return [
        (part, key)
        for part in module.modules()
        if id(part) not in norms
        for key, buffer in part.named_buffers(recurse=False)
        if not buffer.is_meta
    ]
