"""A script's tensors: small ones of the host have values, those of the device have shapes alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from parastrat.runtime.backward import in_backward
from parastrat.runtime.tracing import fakes
from parastrat.runtime.tracing.fake_mode import FakeMode

if TYPE_CHECKING:
    from types import FrameType

    from parastrat.runtime.dry_run.watch import Watch

#: what a script makes on the host may steer it: samples, order, masks, counts; larger ones are weights
MOST_ON_HOST = 64 * 2**20
#: what is made or moved on the device keeps its values up to here: counts, scales, flags
_MOST_KEPT = 64
_ATEN = torch.ops.aten
_TORCH, _OURS = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])
#: through these every call of a script goes
_SEES_ALL = (str(Path(__file__).parent), str(Path(fakes.__file__)))


class Values(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Computes with real tensors as ever; what meets a fake one becomes fake, and so do large new ones.

    What Python reads of a fake tensor is taken: 1 for a number, True for whether two are equal, False for
    other truths.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.fakes = FakeMode()
        #: what is made now is made on the device
        self.making_on_device = False
        #: where values were read that are not there, and what was taken for them
        self.taken: dict[str, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:  # they compute by operators of their shares, which come by then
            return NotImplemented
        keywords = dict(kwargs or {})
        if keywords.get("device") == torch.device("cpu", 0):  # which fake tensors tell from the host
            keywords["device"] = torch.device("cpu")
        given = [leaf for leaf in tree_leaves((args, keywords)) if isinstance(leaf, torch.Tensor)]
        if any(isinstance(leaf, FakeTensor) for leaf in given):
            if func in (_ATEN._local_scalar_dense.default, _ATEN.equal.default):  # noqa: SLF001
                return self.take(given[0].dtype if func is not _ATEN.equal.default else None)
            with self.fakes:
                return func(*args, **keywords)
        is_new = not given or ("device" in keywords and all(leaf.is_meta for leaf in given))
        if is_new and self._belongs_on_device(func, args, keywords):
            with self.fakes:
                return func(*args, **keywords)
        return func(*args, **keywords)

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor of the same form: what a copy to the device makes."""
        if isinstance(tensor, FakeTensor | DTensor) or tensor.is_meta:
            return tensor
        with _disable_current_modes(), self.fakes:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")

    def moved(self, tensor: torch.Tensor, watch: Watch) -> torch.Tensor:
        """Return what a copy to the device makes of a tensor: fake, unless it is a number or a few."""
        if tensor.untyped_storage().nbytes() <= _MOST_KEPT:
            return tensor
        found = self.on_device(tensor)
        watch.hold(found)
        return found

    def take(self, dtype: torch.dtype | None) -> Any:
        """Return what stands for a value of a fake tensor, and note where it was read."""
        taken: Any = dtype is None if dtype in (None, torch.bool) else (1.0 if is_real(dtype) else 1)
        place = _place(sys._getframe(1))  # noqa: SLF001  (no other way to the frame)
        if place is not None:
            self.taken[place] = str(taken)
        return taken

    def _belongs_on_device(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        with _disable_current_modes(), FakeMode():
            made = [leaf for leaf in tree_leaves(func(*args, **keywords)) if isinstance(leaf, torch.Tensor)]
        # modes of functions, which see where tensors are made, are off inside of backward
        backward = in_backward()

        def most(leaf: torch.Tensor) -> int:
            on_device = self.making_on_device or (backward and is_real(leaf.dtype))
            return _MOST_KEPT if on_device else MOST_ON_HOST

        return any(not leaf.is_meta and leaf.nbytes > most(leaf) for leaf in made)


def is_real(dtype: torch.dtype) -> bool:
    """Return whether numbers of this format are data, not counts and truths that steer a program."""
    return dtype.is_floating_point or dtype.is_complex


@contextmanager
def parameters_on_device(values: Values, watch: Watch) -> Iterator[None]:
    """Make every new parameter fake: no weight takes memory."""
    make = nn.Parameter.__new__

    def made(cls: type[nn.Parameter], data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (torch.Tensor, nn.Parameter) and not data.is_meta:
            data = values.on_device(data)
            watch.hold(data)
        elif type(data) is DTensor and not data.is_meta:
            share = data._local_tensor  # noqa: SLF001  (this rank's)
            data._local_tensor = values.on_device(share)  # noqa: SLF001
            watch.hold(data)
        return make(cls, data, requires_grad)

    swap = torch.utils.swap_tensors

    def changed(old: torch.Tensor, new: torch.Tensor) -> None:
        if isinstance(old, FakeTensor):
            old.data = new.detach()
        else:
            swap(old, new)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    # modules that change their format swap fake parameters, which something else refers to
    with patch.object(nn.Parameter, "__new__", made), patch.object(torch.utils, "swap_tensors", changed):
        yield


def _place(frame: FrameType | None) -> str | None:
    """Return the file and line outside of torch that is run; None where this package reads for itself."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS) and not file.startswith(_SEES_ALL):
            return None
        if not file.startswith(("<", _TORCH, _OURS)) and "contextlib" not in file:
            return f"{Path(file).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return None
