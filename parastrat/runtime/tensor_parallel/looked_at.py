"""What a script looks at inside of a divided model, of which each rank has a share: told, or refused.

A hook on a layer whose features are divided is given this rank's; attention weights that a model returns
are those of its heads. Norms, penalties and pictures of them would be other ones on each rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from parastrat.errors import WrapError
from parastrat.runtime.leaves import tensors_in
from parastrat.runtime.tensor_parallel.layout import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from parastrat.runtime.wrapping import Wrapping

#: what names of attention weights end in, in outputs of transformers' models
_ATTENTIONS = "attentions"
_OWN = ("torch", "parastrat")
_WITH_HEADS = 4


class LookedAt:
    """Looks for hooks on divided layers, and at attention weights.

    Args:
        module: the user's.
        wrapping: of it.
    """

    def __init__(self, module: nn.Module, wrapping: Wrapping) -> None:
        parts = {} if wrapping.layout is None else wrapping.layout.parts
        self._layers = {
            name: module.get_submodule(name)
            for name, part in parts.items()
            if part.role in (Role.COLUMN, Role.ROW)
        }
        self._heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
        self._is_told = False

    def hooks(self) -> None:
        """Warn once of hooks that are given a share."""
        name = "" if self._is_told else next(self._hooked(), "")
        if name:
            self._is_told = True
            warnings.warn(
                f"a hook on {name} sees what this rank has of its features, as tp divides them: what is "
                "computed of that is another number on each rank; hook the block around it, whose output "
                "is whole, or plan --tp 1",
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
