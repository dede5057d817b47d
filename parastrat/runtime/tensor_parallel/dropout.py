"""Random numbers under tensor parallelism: alike where the ranks compute the same, else different.

Dropout outside of divided regions must drop the same features on every rank, or the ranks train different
models; inside, each rank holds other features, which must not share one pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The generators' states: the host's, and the device's where it has one of its own."""

    device: torch.device
    host: torch.Tensor
    own: torch.Tensor | None

    @staticmethod
    def now(device: torch.device) -> States:
        own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
        return States(device=device, host=torch.get_rng_state(), own=own)

    def restore(self) -> None:
        torch.set_rng_state(self.host)
        if self.own is not None:
            torch.get_device_module(self.device).set_rng_state(self.own, self.device)


class Regions:
    """Switches generators where forwards and divided regions begin and end."""

    def __init__(self, device: torch.device, *, seed: int, tp_rank: int, dp_rank: int) -> None:
        self._device = device
        self._seed, self._tp_rank, self._dp_rank = seed, tp_rank, dp_rank
        self._forwards = 0
        #: of the user's code, while a forward runs
        self._outside: States | None = None
        #: of whole activations, while a divided region runs
        self._whole: States | None = None

    def around(self, model: nn.Module) -> None:
        """Seed every training forward alike on the tp ranks; give the state back afterwards."""

        def before(module: nn.Module, _args: tuple[Any, ...]) -> None:
            if not module.training:
                return
            self._outside = States.now(self._device)
            self._forwards += 1
            torch.manual_seed(hash((self._seed, self._forwards, self._dp_rank)) % 2**63)

        def after(_module: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
            self._whole = None
            if self._outside is not None:
                self._outside.restore()
                self._outside = None

        model.register_forward_pre_hook(before)
        model.register_forward_hook(after, always_call=True)

    def afresh(self, block: nn.Module) -> None:
        """Let this block begin outside of regions: a recomputed one may have ended inside."""

        def ahead(_block: nn.Module, _args: tuple[Any, ...]) -> None:
            self._whole = None

        block.register_forward_pre_hook(ahead)

    def begin(self, module: nn.Module) -> None:
        """Enter a divided region behind this column, unless another column has."""

        def behind(column: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
            if column.training and self._whole is None:
                # from the generator itself, so that a recomputed forward draws the same
                seed = drawn()
                self._whole = States.now(self._device)
                torch.manual_seed((seed + 1 + self._tp_rank) % 2**63)

        module.register_forward_hook(behind)

    def end(self, module: nn.Module) -> None:
        """Leave the region before this row."""

        def ahead(_row: nn.Module, _args: tuple[Any, ...]) -> None:
            if self._whole is not None:
                self._whole.restore()
                self._whole = None

        module.register_forward_pre_hook(ahead)


def drawing_apart(device: torch.device, rank: int) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Return what lets each rank draw numbers of its own inside, and go on as all ranks do behind."""

    @contextmanager
    def apart(block: nn.Module) -> Iterator[None]:
        if not block.training:
            yield
            return
        # from the generator itself, so that a recomputed forward draws the same
        seed = drawn()
        whole = States.now(device)
        torch.manual_seed((seed + 1 + rank) % 2**63)
        try:
            yield
        finally:
            whole.restore()

    return apart


def drawn() -> int:
    """Return a number that the generator draws."""
    return int(torch.randint(2**62, (1,)).item())


def drops(module: nn.Module) -> bool:
    """Return whether training draws random numbers: dropout, stochastic depth, layer dropout."""
    return any(True for _ in _rates(module))


def without_dropout(module: nn.Module) -> None:
    """Set every rate to zero, in place."""
    for holder, name in list(_rates(module)):
        setattr(holder, name, 0.0)


def _rates(module: nn.Module) -> Iterator[tuple[Any, str]]:
    """Yield the modules and configs with a rate above zero, and its name."""
    for part in module.modules():
        for holder in (part, getattr(part, "config", None)):
            for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
                rate = "drop" in name or (name == "p" and isinstance(holder, _DropoutNd))
                if rate and isinstance(value, float | int) and type(value) is not bool and value > 0:
                    yield holder, name
