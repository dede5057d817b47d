"""Whole weights that a script loads into a model of which a rank has a part: told how they are loaded.

torch says of them that an operator "got mixed torch.Tensor and DTensor", or, with ``assign=True``, nothing;
of a pipeline, that it did not expect the weights of other stages.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from parastrat.errors import WrapError
from parastrat.runtime.wrapped import inner

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from parastrat.runtime.wrapping import Wrapping

#: torch tells hooks of it nothing of ``strict``
_LOAD = "load_state_dict"
_HINT = (
    "load it as auto_parallelize(model, checkpoint=FILE) does, or on all ranks by set_model_state_dict("
    "model, state, options=StateDictOptions(full_state_dict=True)) "
    "of torch.distributed.checkpoint.state_dict"
)
_OF_STAGES = (
    "load it as auto_parallelize(model, checkpoint=FILE) does, or with strict=False on all ranks: each "
    "takes what it has"
)


def tell_of_whole(model: nn.Module, wrapping: Wrapping) -> None:
    """Refuse ``load_state_dict`` of what is whole, where the model is not."""
    plan, module = wrapping.plan, inner(model)
    if plan.shards_parameters or plan.mesh.tp > 1:
        for part in module.modules():
            if any(isinstance(held, DTensor) for held in part._parameters.values()):  # noqa: SLF001  (as elsewhere)
                hook: Any = part.register_load_state_dict_pre_hook  # torch leaves it untyped
                hook(_check_whole)
    if wrapping.pipeline is not None:
        vars(model)[_LOAD] = partial(_of_own_stages, model.load_state_dict, wrapping.pipeline.absent.names)


def _check_whole(part: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    parameters: dict[str, Any] = part._parameters  # noqa: SLF001  (as elsewhere)
    for key, held in parameters.items():
        given = state.get(prefix + key)
        if isinstance(held, DTensor) and isinstance(given, torch.Tensor) and not isinstance(given, DTensor):
            raise WrapError(
                f"load_state_dict is given {prefix}{key} whole, and each rank has a part of it", hint=_HINT
            )


def _of_own_stages(
    load: Callable[..., Any],
    absent: frozenset[str],
    state_dict: Any,  # torch names it
    strict: bool = True,
    assign: bool = False,
) -> Any:
    """Call ``load_state_dict`` where it does not ask for what other stages have.

    Raises:
        WrapError: naming a weight of another stage.
    """
    others = sorted(absent.intersection(state_dict)) if strict else []
    if others:
        raise WrapError(
            f"load_state_dict is given {others[0]}, which another stage of the pipeline has",
            hint=_OF_STAGES,
        )
    return load(state_dict, strict=strict, assign=assign)
