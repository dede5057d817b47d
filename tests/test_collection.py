from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest

from parastrat.collection import instances


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
