"""The parameters and buffers of a module, each once, with all the places that hold it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from parastrat.errors import ModelError
from parastrat.runtime.tensors.leaves import tensors_in
from parastrat.runtime.tensors.shares import as_share, share_of_whole

#: what wrappers insert into names
_INFIXES = ("_checkpoint_wrapped_module.", "_orig_mod.")


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """One parameter or buffer."""

    #: what was there when the slot was made
    tensor: torch.Tensor
    #: False for buffers that checkpoints leave out
    persistent: bool
    #: modules and keys that hold it; several for tied weights
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)
    #: names in the module, without what wrappers insert
    names: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, nn.Parameter)

    @property
    def is_meta(self) -> bool:
        return self.tensor.device.type == "meta"

    def current(self) -> torch.Tensor:
        """Return what the first owner holds now; initialisers may have put another tensor there."""
        owner, key = self.owners[0]
        held = owner._parameters.get(key)  # noqa: SLF001  (the attribute may show this rank's part)
        return getattr(owner, key) if held is None else held

    def put(self, tensor: torch.Tensor) -> None:
        """Let all owners hold this tensor, so that ties stay ties."""
        for owner, key in self.owners:
            if isinstance(tensor, nn.Parameter):
                owner._parameters[key] = tensor  # noqa: SLF001  (nn.Module's setattr has side effects)
            else:
                owner._buffers[key] = tensor  # noqa: SLF001

    def standing_for(self, values: torch.Tensor) -> torch.Tensor:
        """Return values as what this slot holds: a parameter with its attributes, or a plain buffer."""
        if not self.is_parameter:
            return values
        parameter = nn.Parameter(values, requires_grad=self.tensor.requires_grad)
        # Hugging Face marks what it has initialised; these values are new
        parameter.__dict__.update({k: v for k, v in vars(self.tensor).items() if k != "_is_hf_initialized"})
        return parameter

    def placed(self, full: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of the full values: as the slot's tensor was laid out."""
        if not isinstance(self.tensor, DTensor):
            return self.standing_for(full)
        own = share_of_whole(full, self.tensor).clone()  # a view would keep the full values alive
        return self.standing_for(as_share(own, self.tensor))

    def allocated(self, device: torch.device) -> torch.Tensor:
        """Return memory without values, laid out as the slot's tensor."""
        return self.standing_for(torch.empty_like(self.tensor, device=device))


def slots_of(module: nn.Module) -> list[Slot]:
    """Return all parameters and buffers, in the module's order."""
    slots: dict[int, Slot] = {}
    for path, owner in module.named_modules():
        transient = owner._non_persistent_buffers_set  # noqa: SLF001  (no public accessor)
        held = {**owner._parameters, **owner._buffers}  # noqa: SLF001  (the public ones drop ties)
        for key, tensor in held.items():
            if tensor is None:
                continue
            slot = slots.setdefault(id(tensor), Slot(tensor=tensor, persistent=key not in transient))
            slot.owners.append((owner, key))
            slot.names.append(clean_name(f"{path}.{key}" if path else key))
    return list(slots.values())


def check_shapes(module: nn.Module) -> None:
    """Refuse a module with lazy layers that have not run.

    Raises:
        ModelError: naming one of their tensors.
    """
    named = (*module.named_parameters(), *module.named_buffers())
    lazy = next((name for name, tensor in named if is_lazy(tensor)), None)
    if lazy is not None:
        raise ModelError(
            f"{lazy} has no shape yet: a lazy layer takes it from its first forward",
            hint="state the sizes (nn.Linear(in_features, ...) for nn.LazyLinear), or pass a built module "
            "behind a forward of it",
        )


def without_data(module: nn.Module) -> nn.Module:
    """Return a copy on the meta device, with the same ties."""
    memo: dict[int, Any] = {id(tensor): tensor.detach().to("meta") for tensor in left_behind(module)}
    memo |= {id(slot.tensor): slot.standing_for(meta_like(slot.tensor)) for slot in slots_of(module)}
    return copy.deepcopy(module, memo)


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return one of the same form on the meta device; of a fake tensor no fake one."""
    if isinstance(tensor, FakeTensor):
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    return torch.empty_like(tensor, device="meta")


def left_behind(module: nn.Module) -> list[torch.Tensor]:
    """Return the tensors among a module's plain attributes that were computed from parameters.

    A forward leaves them, or hooks that make a weight of others (``torch.nn.utils.weight_norm``); Python
    cannot copy them.
    """
    held = tensors_in([list(vars(part).values()) for part in module.modules()])
    return [tensor for tensor in held if not tensor.is_leaf]


def clean_name(name: str) -> str:
    """Return a parameter's or module's name as the user's module has it."""
    for infix in _INFIXES:
        name = f"{name}.".replace(infix, "").removesuffix(".")
    return name
