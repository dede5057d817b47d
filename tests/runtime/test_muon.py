"""What torch's Muon computes, makes and sends for a matrix, on fake tensors, beside what is estimated."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from jobs import row
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from parastrat.plan import Shard as Sharding
from parastrat.ranks.division import division
from parastrat.ranks.matrices import Matrices

RANKS = 8
SHAPES = [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336)]


@pytest.fixture
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


class Watch(TorchDispatchMode):
    """Counts FLOPs of products, bytes that live, and elements of collectives' buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.live = self.peak = 0
        self.sent: dict[str, list[int]] = {}
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        namespace, name = func.namespace, func.__name__.split(".")[0]
        if name in {"mm", "addmm"}:
            left, right = args[-2:]
            self.flops += 2 * left.numel() * right.shape[1]
        if namespace == "_c10d_functional" and name != "wait_tensor":
            self.sent.setdefault(name, []).append(args[0].numel())
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place in self._known:
            return
        self._known.add(place)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.live -= size


def stepped(shape: tuple[int, int], *, sharded: bool) -> Watch:
    """Return what a second step of one matrix does."""
    mesh = init_device_mesh("cpu", (RANKS,)) if sharded else None
    with FakeTensorMode():
        matrix = torch.zeros(shape)
        if mesh is not None:
            matrix = distribute_tensor(matrix, mesh, [Shard(0)], src_data_rank=None)
        weight = torch.nn.Parameter(matrix)
        weight.grad = torch.zeros_like(weight)
        optimizer = torch.optim.Muon([weight])
        optimizer.step()
        with Watch() as watch:
            optimizer.step()
    return watch


def temporaries(shape: tuple[int, int], *, sharded: bool) -> float:
    largest = shape[0] * shape[1], min(shape) ** 2
    fields: dict[str, Any] = {"dp_shard": RANKS, "shard": Sharding.PARAMETERS} if sharded else {}
    matrices = Matrices(of_kinds=(), totals=(), largest=largest)
    return float(matrices.temporaries(division(row(**fields)), sharded))


@pytest.mark.parametrize("shape", SHAPES)
def test_of_one_device(shape: tuple[int, int]) -> None:
    short, long = sorted(shape)
    watch = stepped(shape, sharded=False)
    assert watch.flops == 5 * (4 * short**2 * long + 2 * short**3)
    assert watch.peak == temporaries(shape, sharded=False)
    assert not watch.sent


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("shape", SHAPES)
def test_of_ranks_that_share_it(shape: tuple[int, int]) -> None:
    short, long = sorted(shape)
    watch = stepped(shape, sharded=True)
    # each rank makes the product of Gram matrices whole
    assert watch.flops == 5 * (4 * short**2 * long // RANKS + 2 * short**3)
    assert 0.35 * temporaries(shape, sharded=True) < watch.peak <= temporaries(shape, sharded=True)
    # a reduce-scatter and a gathering of what it leaves are one all-reduce
    sums = [each for each in watch.sent["all_reduce"] if each > 1]
    scattered = watch.sent.get("reduce_scatter_tensor", [])
    assert sums + scattered == [short**2] * 10
    # gathered from shards: the matrix, where it is no taller than wide, or scattered sums
    gathered = sum(watch.sent.get("all_gather_into_tensor", [])) * RANKS
    assert gathered == (5 * short * long if shape[0] <= shape[1] else 0) + 2 * len(scattered) * short**2
