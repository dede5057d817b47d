"""Streams of one device, by hand."""

from __future__ import annotations

import pytest

from parastrat.timeline.data_parallel import Unit, works_of
from parastrat.timeline.kinds import Kind
from parastrat.timeline.streams import Passed, Sharing, Work, passed

FREE = Sharing(compute="compute", beside=1.0)
ROOT = Unit(name="root", forward=0, backward=0)


def times(works: tuple[Passed, ...], kind: Kind) -> list[tuple[str, float, float]]:
    return [(each.work.name, each.start, each.end) for each in works if each.work.kind is kind]


def test_compute_is_slower_beside_a_collective() -> None:
    works = (Work(Kind.FORWARD, "a", "compute", 4.0), Work(Kind.GATHER, "b", "gather", 2.0))
    forward, gather = passed(works, Sharing(compute="compute", beside=0.5))
    # half of the speed for two seconds
    assert (gather.end, forward.end) == (2.0, 5.0)


def test_compute_stops_beside_a_collective_that_takes_its_cores() -> None:
    works = (Work(Kind.FORWARD, "a", "compute", 4.0), Work(Kind.GATHER, "b", "gather", 2.0))
    forward, gather = passed(works, Sharing(compute="compute", beside=0.0))
    assert (gather.end, forward.end) == (2.0, 6.0)


def test_collectives_share_the_network() -> None:
    works = (Work(Kind.GATHER, "a", "gather", 2.0), Work(Kind.REDUCE, "b", "reduce", 3.0))
    gather, reduce = passed(works, FREE)
    assert (gather.end, reduce.end) == (4.0, 5.0)


def test_what_waits_for_each_other_is_told() -> None:
    works = (Work(Kind.FORWARD, "a", "compute", 1.0, (1,)), Work(Kind.GATHER, "b", "gather", 1.0, (0,)))
    with pytest.raises(ValueError, match="wait for each other"):
        passed(works, FREE)


def test_one_unit_is_gathered_while_the_one_before_runs() -> None:
    units = [Unit(name=name, forward=3, backward=6, gather=1, reduce=2) for name in "abc"]
    works = passed(works_of(units, ROOT, 1, again=True), FREE)
    forwards, gathers = times(works, Kind.FORWARD), times(works, Kind.GATHER)
    assert forwards == [("a", 1, 4), ("b", 4, 7), ("c", 7, 10)]
    # the second with the first's forward, the third when the first has ended; backward the other way round
    assert gathers[:3] == [("a", 0, 1), ("b", 1, 2), ("c", 4, 5)]
    assert [name for name, _, _ in gathers] == ["a", "b", "c", "b", "a"]
    backwards, reduces = times(works, Kind.BACKWARD), times(works, Kind.REDUCE)
    assert [(start, end) for _, start, end in backwards] == [(10, 16), (16, 22), (22, 28)]
    assert reduces[-1] == ("a", 28, 30)


def test_no_more_than_one_reduction_lies_beside() -> None:
    units = [Unit(name=name, forward=1, backward=1, reduce=5) for name in "abc"]
    works = passed(works_of(units, ROOT, 1, again=False), FREE)
    # c's reduction ends at 9, before which a's backward does not begin, though b's ended at 5
    assert [(start, end) for _, start, end in times(works, Kind.BACKWARD)] == [(3, 4), (4, 5), (9, 10)]


def test_the_root_is_gathered_before_anything_runs_and_reduced_last() -> None:
    unit = Unit(name="a", forward=1, backward=2, gather=1, reduce=1)
    root = Unit(name="root", forward=0, backward=0, gather=2, reduce=3)
    works = passed(works_of([unit], root, 1, again=True), FREE)
    assert times(works, Kind.FORWARD) == [("a", 3, 4)]
    assert times(works, Kind.REDUCE) == [("a", 6, 7), ("root", 7, 10)]


def test_ddp_reduces_in_the_last_micro_batch_alone() -> None:
    units = [Unit(name=name, forward=1, backward=2, reduce_last=1) for name in "ab"]
    works = passed(works_of(units, ROOT, 2, again=False), FREE)
    assert times(works, Kind.REDUCE) == [("b", 10, 11), ("a", 12, 13)]
