from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest

from parastrat.collection import instances, setting_aside, without_collection


class Held:
    pass


class Below(Held):
    pass


class Pretending:
    """A proxy: says that it is what it stands for."""

    @property
    def __class__(self) -> type[Any]:
        raise AssertionError("asked for its class")


@pytest.mark.parametrize("make", [Held, lambda: functools.cache(lambda _: Held())])
def test_instances_are_those_among_all_objects(make: Callable[[], Any]) -> None:
    held = [make(), make()]
    kind = type(held[0])
    found = instances({kind})
    assert {id(each) for each in held} <= {id(each) for each in found}
    assert {id(each) for each in found} == {id(each) for each in gc.get_objects() if type(each) is kind}


def test_only_just_these_kinds_are_found() -> None:
    held = [Held(), Below(), Pretending()]
    assert [each for each in instances({Held}) if each is held[0]] == held[:1]
    assert not [each for each in instances({Held}) if each is held[1]]
    assert {type(each) for each in instances({Held, Below})} == {Held, Below}


def test_what_is_set_aside_is_found_with_what_is_new() -> None:
    old = Held()
    with setting_aside(), setting_aside():
        assert gc.get_freeze_count()
        assert id(old) in ids(Held)
        new, below = Held(), Below()
        assert {id(old), id(new)} <= ids(Held)
        # others are asked for, and what had come by then is set aside with the rest
        assert id(below) in ids(Below)
        assert {id(old), id(new)} <= ids(Held)
    assert not gc.get_freeze_count()
    assert {id(old), id(new)} <= ids(Held)


def ids(kind: type) -> set[int]:
    found = [id(each) for each in instances({kind})]
    assert len(set(found)) == len(found)
    return set(found)


def test_nothing_stays_aside_behind_a_failure() -> None:
    with pytest.raises(ValueError, match="within"), setting_aside():
        raise ValueError("within")
    assert not gc.get_freeze_count()


def test_nothing_is_collected_meanwhile_nor_before_the_caller_has_the_result() -> None:
    @without_collection()
    def made(depth: int) -> list[Any]:
        own = [[gc.isenabled()] for _ in range(5000)]
        return [*(made(depth - 1) if depth else ()), *own, [gc.isenabled()]]

    looks: list[str] = []
    gc.callbacks.append(lambda phase, _: looks.append(phase))
    try:
        found = made(3)
        seen = len(looks)
    finally:
        gc.callbacks.pop()
    assert not seen
    assert not any(was_on for (was_on,) in found)
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
