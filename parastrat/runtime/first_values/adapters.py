"""Adapters of peft: under which names they hold the model that is inside, and what is theirs alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

#: what peft puts into the names of layers: around one that has an adapter, and of one that is trained whole
_LAYER = re.compile(r"\.(?:base_layer|original_module|modules_to_save\.[^.]+)(?=\.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A model with adapters."""

    #: stands before the names of the model inside
    before: str
    #: with which the names of an adapter's own parts begin; empty where they are outside of the model
    prefix: str

    def is_own(self, name: str) -> bool:
        """Return whether a weight is the adapter's, which no checkpoint of the model has."""
        if not name.startswith(self.before):
            return True
        return bool(self.prefix) and any(part.startswith(self.prefix) for part in name.split("."))

    def inside(self, name: str) -> str:
        """Return what the model inside calls one of its weights."""
        return _LAYER.sub("", name.removeprefix(self.before))


def adapted(module: nn.Module) -> Adapted | None:
    """Return how a model of peft names its parts; None for others."""
    base = getattr(module, "base_model", None)
    if not hasattr(module, "peft_config") or not isinstance(base, nn.Module):
        return None
    prefix = getattr(base, "prefix", None)  # of what puts adapters into layers
    return Adapted(before="base_model." if prefix is None else "base_model.model.", prefix=prefix or "")
