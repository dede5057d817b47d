"""What a script saves by itself of a model that is divided is a part of it, and a script is told so.

``if rank == 0: torch.save(model.state_dict(), path)`` writes rank 0's shards, and all others' are lost with
the job; a pipeline's ``state_dict`` has the weights of this rank's stages alone. Neither fails.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from parastrat.errors import WrapError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

    from torch import nn

    from parastrat.runtime.wrapping import Wrapping

_ALL = "parastrat.save_checkpoint(model, optimizer, folder) on all ranks saves it whole"
#: FSDP2 and tensor parallelism
_GATHERED = (
    f"{_ALL}, as does state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True)) of torch.distributed.checkpoint.state_dict on all, and {} on one"
)
#: pipelines
_JOINED = (
    f"{_ALL}, of which dcp_to_torch_save(folder, file) of torch.distributed.checkpoint.format_utils makes "
    'one file: torch.load(file)["model"]'
)
#: what transformers' models, and peft's, write themselves by
_OWN = "save_pretrained"


def tell_of_parts(model: nn.Module, wrapping: Wrapping) -> None:
    """Let a script know where it saves a part of a wrapped model."""
    pipeline, own = wrapping.pipeline, getattr(model, _OWN, None)
    divides = wrapping.plan.shards_parameters or wrapping.plan.mesh.tp > 1
    if divides:
        kind: Any = DTensor  # a method of its own is all that pickle asks
        kind.__reduce_ex__ = _pickled
    if pipeline is not None:
        hook: Any = model.register_state_dict_post_hook  # torch leaves it untyped
        hook(_of_stages)
    if callable(own) and pipeline is not None:
        names = frozenset(name for name, _ in pipeline.skeleton.named_parameters())
        setattr(model, _OWN, partial(_saved, own, names, _JOINED))
    elif callable(own) and divides:
        hint = _GATHERED.format(f"model.{_OWN}(folder, state_dict=state)")
        setattr(model, _OWN, partial(_saved, own, frozenset(), hint))


def _pickled(divided: DTensor, protocol: Any) -> Any:
    """Pickle a DTensor as torch does, and warn where ``torch.save`` writes a share of it."""
    shares = any(
        placement.is_shard() and divided.device_mesh.size(axis) > 1
        for axis, placement in enumerate(divided.placements)
    )
    if shares and dist.is_initialized():
        callers = list(_callers())
        if "torch.serialization" in callers and "torch.distributed" not in callers:
            what = "has of each divided tensor, and no other's part"
            hint = _GATHERED.format("torch.save(state, path)")
            warnings.warn(f"torch.save writes what rank {dist.get_rank()} {what}: {hint}", stacklevel=3)
    plain: Any = super(DTensor, divided).__reduce_ex__  # torch leaves it untyped
    return plain(protocol)


def _of_stages(_module: nn.Module, _state: Any, prefix: str, _metadata: Any) -> None:
    """Warn where a script asks for the weights of a pipeline."""
    asks = next((caller for caller in _callers() if caller != "torch.nn"), "")
    if not prefix and asks not in {"torch.distributed", "parastrat"}:
        what = "has the weights of its own stages, and no other's"
        warnings.warn(f"state_dict() on rank {dist.get_rank()} {what}: {_JOINED}", stacklevel=3)


def _saved(save: Callable[..., Any], names: Collection[str], hint: str, *args: Any, **kwargs: Any) -> Any:
    """Call a model's own ``save_pretrained`` where it is given the whole weights.

    Raises:
        WrapError: where it would take this rank's.
    """
    state = kwargs.get("state_dict")
    if not state or not set(names) <= set(state):
        raise WrapError(f"{_OWN} would write what this rank has of a divided model", hint=hint)
    return save(*args, **kwargs)


def _callers() -> Iterator[str]:
    """Yield the packages that called, the nearest first; of torch's the module."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  (``inspect.stack`` reads every file)
    while frame is not None:
        words = frame.f_globals.get("__name__", "").split(".")
        if frame.f_globals is not globals():
            yield ".".join(words[:2]) if words[0] == "torch" else words[0]
        frame = frame.f_back
