"""Weights that a script puts in the place of those that FSDP2 gathers, refused before they are lost.

``torch.func.functional_call(model, weights, x)`` puts others in place for a forward. FSDP2 gathers its own
all the same: the result is of these, without a word. Or, in its first forward, it takes the others for its
own from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from parastrat.errors import WrapError
from parastrat.runtime.training.writes import apart, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.runtime.training.unused import Place


def refuse_swapped(root: nn.Module) -> None:
    """Refuse forwards with other weights in place than those that FSDP2 has.

    Args:
        root: sharded by FSDP2, or replicated by what is built on it, with all units in it.
    """
    known = [found for unit in root.modules() if isinstance(unit, FSDPModule) for found in _known_to(unit)]

    def before(_root: nn.Module, _args: tuple[Any, ...]) -> None:
        for state, place, its in known:
            held = place[0]._parameters.get(place[1])  # noqa: SLF001  (the attribute may show a part)
            if held is its.sharded_param or held is getattr(its, "_unsharded_param", None):
                continue
            # before its first forward FSDP2 takes what was assigned, as ``load_state_dict`` does
            if state._is_root is None and isinstance(held, nn.Parameter):  # noqa: SLF001  (as below)
                continue
            raise WrapError(
                f"{name_of(place)} is not the parameter that FSDP2 gathers: it would compute with its own, "
                "and train that",
                hint="functional_call goes with plans of ddp or tp; to evaluate an average of weights, "
                "call a copy.deepcopy(model) that has it",
            )

    # before FSDP2 gathers
    root.register_forward_pre_hook(apart(before), prepend=True)


def _known_to(unit: Any) -> Iterator[tuple[Any, Place, Any]]:
    """Yield the state of a unit, and with it where each parameter belongs and what FSDP2 knows of it."""
    state = unit._get_fsdp_state()  # noqa: SLF001  (there is no public way)
    several = getattr(state, "_fsdp_param_groups", None)  # of later releases than 2.11
    for group in [state._fsdp_param_group] if several is None else several:  # noqa: SLF001  (as above)
        for its in () if group is None else group.fsdp_params:
            info = its._module_info  # noqa: SLF001  (as above)
            yield state, (info.module, info.param_name), its
