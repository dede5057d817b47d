"""Buffers that a forward changes, such as running statistics: rank 0's, on every rank.

Each rank's forward sees its own samples, so their buffers drift apart. Rank 0's count, as under DDP: FSDP2
leaves buffers alone, and ``torch.distributed.checkpoint`` keeps each from whichever rank writes least.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from parastrat.runtime.communication.compared import differing
from parastrat.runtime.communication.messages import in_messages
from parastrat.runtime.tensors.buffers import changeable, has_changing_buffers, norms_with_statistics
from parastrat.runtime.wrapped import inner, wrapped_of

if TYPE_CHECKING:
    from parastrat.runtime.communication.mesh import RankMesh
    from parastrat.runtime.wrapped import Wrapped


def follow_first_rank(model: nn.Module, wrapping: Wrapped) -> None:
    """Send rank 0's buffers to all ranks before each forward that follows one in training.

    That is what DDP does by itself, and what a sharded model needs as much. Those of a copy are sent before
    its first forward too, and where a script wrote to them: averages of weights average each rank's.
    """
    if not has_changing_buffers(model):
        return
    drifted = wrapping.copied
    seen = list[tuple[int, int]]()

    def before(_module: nn.Module, _args: tuple[Any, ...]) -> None:
        nonlocal drifted
        if drifted or (wrapping.copied and seen != _versions(model)):
            _send(model, wrapping.mesh)
            drifted = False

    def after(module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        nonlocal drifted
        if wrapping.copied:
            seen[:] = _versions(model)
        # with gradients on, a part may train while the whole is said to be in eval mode
        drifted = drifted or module.training or torch.is_grad_enabled()

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after)
    wrapping.calls.append("# rank 0's buffers are sent before a forward that follows training, as by DDP")


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """Return which buffers a model has, and how often each was written to."""
    return [(id(buffer), buffer._version) for buffer in model.buffers()]  # noqa: SLF001  (no public accessor)


class OwnBuffers:
    """Tells once of buffers that follow each rank's own samples, but for running statistics of norms.

    Codebooks, centres and queues are rank 0's then, which has seen a part of the samples.

    Args:
        model: wrapped, with data ranks.
        wrapping: of it.
    """

    def __init__(self, model: nn.Module, wrapping: Wrapped) -> None:
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
    module, mesh = inner(model), wrapped_of(model).mesh
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
