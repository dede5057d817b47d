"""What a script looks at inside of a divided model, of which each rank has a share: told, or refused.

A hook on a layer whose features are divided is given this rank's, one in a block whose positions are
divided those of this rank; attention weights that a model returns are those of its heads. Norms, penalties
and pictures of them would be other ones on each rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from parastrat.errors import WrapError
from parastrat.runtime.tensor_parallel.layout import Role
from parastrat.runtime.tensors.leaves import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from parastrat.runtime.wrapped import Wrapped

#: what names of attention weights end in, in outputs of transformers' models
_ATTENTIONS = "attentions"
_OWN = ("torch", "parastrat")
_WITH_HEADS = 4
#: what is divided, and what else to hook
_FEATURES = "features, as tp divides", "hook the block around it, whose output is whole, or plan --tp 1"
_POSITIONS = "positions, as cp divides", "hook what comes behind the blocks, or plan --cp 1"


class LookedAt:
    """Looks for hooks on what is divided, and at attention weights.

    Args:
        module: the user's.
        wrapping: of it.
    """

    def __init__(self, module: nn.Module, wrapping: Wrapped) -> None:
        #: by name what is given a share
        self._layers = dict(_divided(module, wrapping))
        self._said = _FEATURES if wrapping.division is None else _POSITIONS
        self._heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
        self._is_told = False

    def hooks(self) -> None:
        """Warn once of hooks that are given a share."""
        name = "" if self._is_told else next(self._hooked(), "")
        if name:
            self._is_told = True
            warnings.warn(
                f"a hook on {name} sees what this rank has of its {self._said[0]} them: what is computed "
                f"of that is another number on each rank; {self._said[1]}",
                stacklevel=2,
            )

    def _hooked(self) -> Iterator[str]:
        for name, layer in self._layers.items():
            for hook in (*layer._forward_hooks.values(), *layer._forward_pre_hooks.values()):  # noqa: SLF001  (no public way)
                where: Any = getattr(hook, "func", hook)
                if not str(getattr(where, "__module__", "")).startswith(_OWN):
                    yield name

    def attentions(self, output: Any) -> None:
        """Refuse attention weights of a share of the heads.

        Raises:
            WrapError: naming them.
        """
        if not isinstance(output, Mapping) or not isinstance(self._heads, int):
            return
        for key in output:
            given = output[key] if str(key).endswith(_ATTENTIONS) else None
            for each in () if given is None or isinstance(given, Tensor) else tensors_in(given):
                if each.ndim == _WITH_HEADS and each.shape[1] < self._heads:
                    raise WrapError(
                        f"{key} of the output are of {each.shape[1]} of {self._heads} heads, as tp divides "
                        "them: each rank has others",
                        hint="leave output_attentions out, or plan without tp: parastrat recommend --tp 1",
                    )


def _divided(module: nn.Module, wrapping: Wrapped) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers whose features are divided, and all that is in blocks whose positions are."""
    if wrapping.layout is not None:
        for name, part in wrapping.layout.parts.items():
            if part.role in (Role.COLUMN, Role.NORM, Role.ROW):
                yield name, module.get_submodule(name)
    if wrapping.division is not None:
        container = wrapping.division.container
        for name, part in module.get_submodule(container).named_modules(prefix=container):
            if name != container:
                yield name, part
