"""What a rank runs on: fake tensors, or real ones of one accelerator or of this machine's memory."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import UsageError
from parastrat.runtime.dry_run.losses import losses_of_shares
from parastrat.runtime.dry_run.replicas import replicas_alone, replicas_on_fakes
from parastrat.runtime.dry_run.watch import Watch, storages_followed
from parastrat.runtime.tensors.slots import slots_of
from parastrat.runtime.tracing.fake_mode import FakeMode
from parastrat.runtime.tracing.fakes import gpu_kernels
from parastrat.runtime.tracing.watched import explained
from parastrat.runtime.training.step import dividing_logits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from parastrat.runtime.wrapping import Wrapping

#: of weights that nobody trained: activations neither vanish nor overflow
_DEVIATION = 0.02


class Meter(Protocol):
    """Bytes that tensors take."""

    live: int
    #: most that lived since it was last set to ``live``
    peak: int


class Ground(Protocol):
    """Where a rank's tensors are, and what tells their bytes."""

    device: torch.device
    meter: Meter
    #: sees the collectives
    watch: Watch

    def steps(self, model: nn.Module) -> int:
        """Return how many steps are run; the last one counts."""

    def wrapping(self) -> Any:
        """Return a context in which models are wrapped."""

    def running(self, module: nn.Module, wrapping: Wrapping) -> Any:
        """Return a context in which steps run."""

    def give_memory(self, module: nn.Module) -> None:
        """Give meta tensors memory."""

    def batch(self, leaf: Any) -> Any:
        """Return one leaf of a micro-batch on this ground."""

    def reserved(self) -> int | None:
        """Return the most that the allocator held since the peak was last set; None without one."""


class Fakes:
    """Fake tensors: no memory, every byte counted."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.watch = Watch()
        self.meter: Meter = self.watch
        self._mode = FakeMode()

    def steps(self, model: nn.Module) -> int:
        # in the second DDP makes its buckets anew
        return 2 if isinstance(model, DistributedDataParallel) else 1

    def wrapping(self) -> Any:
        return replicas_on_fakes(self._mode, self.watch)

    @contextmanager
    def running(self, module: nn.Module, wrapping: Wrapping) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(gpu_kernels())
            stack.enter_context(storages_followed(self.watch))
            stack.enter_context(self._mode)
            stack.enter_context(explained(module))
            stack.enter_context(self.watch)
            stack.enter_context(losses_of_shares(wrapping))
            yield

    def give_memory(self, module: nn.Module) -> None:
        with self._mode:
            for slot in slots_of(module):
                if slot.is_meta:
                    slot.put(slot.allocated(self.device))

    def batch(self, leaf: Any) -> Any:
        return torch.empty_like(leaf, device="cpu") if isinstance(leaf, torch.Tensor) else leaf

    def reserved(self) -> int | None:
        return None


class Real:
    """Real tensors on one device; what other ranks would send is whatever lies in memory.

    Args:
        device: an accelerator, whose allocator tells the bytes; or the host, where they are counted.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.watch = Watch()
        self.meter: Any = self.watch if device.type == "cpu" else Allocator()

    def steps(self, model: nn.Module) -> int:
        # in the second DDP's ranks agree on their buckets; others' allocators have met every size then
        return 3 if isinstance(model, DistributedDataParallel) else 2

    def wrapping(self) -> Any:
        return replicas_alone()

    @contextmanager
    def running(self, module: nn.Module, wrapping: Wrapping) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(storages_followed(self.watch))
            stack.enter_context(explained(module))
            stack.enter_context(self.watch)
            stack.enter_context(dividing_logits(wrapping))
            yield

    def give_memory(self, module: nn.Module) -> None:
        for slot in slots_of(module):
            if slot.is_meta:
                made = slot.allocated(self.device)
                with torch.no_grad():
                    made.normal_(std=_DEVIATION) if made.is_floating_point() else made.zero_()
                slot.put(made)

    def batch(self, leaf: Any) -> Any:
        return leaf.to(self.device, copy=True) if isinstance(leaf, torch.Tensor) else leaf

    def reserved(self) -> int | None:
        return None if self.device.type == "cpu" else torch.cuda.max_memory_reserved()


class Allocator:
    """The bytes of CUDA's caching allocator on the current device."""

    @property
    def live(self) -> int:
        return torch.cuda.memory_allocated()

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()

    @peak.setter
    def peak(self, _live: int) -> None:
        torch.cuda.reset_peak_memory_stats()


def real_device(kind: str | None) -> torch.device:
    """Return the device that real tensors are on: ``kind``, or this machine's accelerator.

    Raises:
        UsageError: there is none, or of another kind.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if kind not in (None, "cuda"):
        raise UsageError(f"--device {kind} is not known", hint="cuda or cpu")
    if not torch.cuda.is_available():
        raise UsageError(
            "--real puts one rank's tensors on an accelerator, and here is none that CUDA or ROCm knows",
            hint="--device cpu takes this machine's memory instead; without --real tensors are fake",
        )
    return torch.device("cuda", 0)
