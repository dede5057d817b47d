"""Parameters that are DTensors to torch and plain local tensors to the module's own code.

FSDP2, checkpoints, optimizers and gradient norms see ``module._parameters``: DTensors that know the whole
weight, and so does whoever asks outside of a forward. A forward that says ``self.weight`` gets this rank's
plain tensor, as it would under hand-written tensor parallelism, so that any module's code runs, not only
what DTensor implements; and so does one that a checkpoint runs again in backward, without the hooks around.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from parastrat.runtime.backward import in_backward

#: makes of a parameter what the module's code computes with
Use = Callable[[DTensor], torch.Tensor | None]

_USES = "_parastrat_uses"


class _Forwards:
    """How many forwards of ``local_inside`` modules are running, one inside of the other."""

    running = 0


def local_inside(module: nn.Module) -> None:
    """Let parameters be local while this module's forward runs: the model, and blocks to recompute."""
    own = 0

    def before(_module: nn.Module, _args: tuple[Any, ...]) -> None:
        nonlocal own
        own += 1
        _Forwards.running += 1

    def after(_module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        nonlocal own
        if own:  # another hook may have raised before ours began
            own -= 1
            _Forwards.running -= 1

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, always_call=True)


def use_as(module: nn.Module, uses: dict[str, Use]) -> None:
    """Let the module's code see these parameters through ``uses``.

    The module's class becomes a subclass of the same name with a property a parameter. It acts inside of
    ``local_inside``; while a plain tensor takes the DTensor's place (first weights), all see that one.
    """
    held = {**vars(module).get(_USES, {}), **uses}
    base = type(module) if _USES not in vars(module) else type(module).__mro__[1]
    module.__dict__[_USES] = held
    module.__class__ = _with_properties(base, tuple(sorted(held)))


@cache
def _with_properties(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    members: dict[str, Any] = {name: _property(name) for name in names}
    members |= {"__module__": base.__module__, "__qualname__": base.__qualname__}
    return type(base.__name__, (base,), members)


def _property(name: str) -> property:
    def used(module: nn.Module) -> torch.Tensor | None:
        held = module._parameters  # noqa: SLF001  (the property hides it)
        if name not in held:  # of another pipeline stage: zeros stand in
            return vars(module)[name]  # type: ignore[no-any-return]
        parameter: torch.Tensor | None = held[name]
        # what is compiled is a forward, of which nobody knows how deep inside of others it runs
        inside = torch.compiler.is_compiling() or _Forwards.running or in_backward()
        if not isinstance(parameter, DTensor) or not inside:
            return parameter
        use: Use = module.__dict__[_USES][name]
        return use(parameter)

    return property(used)
