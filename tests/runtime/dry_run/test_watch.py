"""Storages and collectives as a watch sees them."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from parastrat.runtime.dry_run.watch import Watch, storages_followed


def test_storages_count_from_their_operator_to_their_end() -> None:
    with Watch() as watch:
        first = torch.zeros(100)
        second = first + 1
        assert (watch.live, watch.peak) == (800, 800)
        # a view has no storage of its own
        view = second[10:]
        assert watch.live == 800
        del first
        assert watch.live == 400
        del second
        assert watch.live == 400
        del view
        assert (watch.live, watch.peak) == (0, 800)


def test_what_was_there_before_counts_once_it_is_held() -> None:
    watch, weight = Watch(), torch.zeros(50)
    watch.hold(weight)
    watch.hold(weight)
    assert watch.live == 200
    del weight
    assert watch.live == 0


def test_storages_that_change_their_size_count_anew() -> None:
    watch, weight = Watch(), torch.zeros(50)
    with storages_followed(watch):
        watch.hold(weight)
        weight.untyped_storage().resize_(0)
        assert (watch.live, watch.peak) == (0, 200)
        weight.untyped_storage().resize_(400)
        assert (watch.live, watch.peak) == (400, 400)
        # what nobody holds is nobody's
        torch.zeros(10).untyped_storage().resize_(1000)
        assert watch.live == 400
    weight.untyped_storage().resize_(0)
    assert watch.live == 400, "seen only where it is asked for"


def test_the_most_is_counted_from_where_one_begins() -> None:
    with Watch() as watch:
        kept = torch.zeros(10)
        del kept
        watch.peak = watch.live
        torch.zeros(5)
    assert watch.peak == pytest.approx(20)


def test_what_dtensors_ask_shapes_of_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Tensor] = []

    def propagate(_propagator: ShardingPropagator, size: int) -> None:
        asked.append(torch.empty(size))

    monkeypatch.setattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate)
    with Watch() as watch, storages_followed(watch):
        ShardingPropagator()._propagate_tensor_meta_non_cached(100)
        assert (watch.live, watch.peak) == (0, 0)
        held = torch.empty(10)
        assert watch.live == held.nbytes


def test_a_collective_that_is_waited_for_is_the_same_tensor() -> None:
    with FakeTensorMode(), Watch() as watch:
        sent = torch.empty(100)
        waited = torch.ops._c10d_functional.wait_tensor(sent)
        assert (watch.live, watch.peak) == (400, 400)
        del sent
        assert watch.live == 400
        del waited
        assert watch.live == 0
