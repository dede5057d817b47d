"""Errors reach other processes as they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

from parastrat.errors import CountError, ParastratError


def kinds(of: type[ParastratError] = ParastratError) -> Iterator[type[ParastratError]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_behind_pickle(kind: type[ParastratError]) -> None:
    more = {"fields": ("tp", "pp")} if kind is CountError else {}
    error = kind("too many", hint="take fewer", **more)  # type: ignore[call-arg] # CountError alone has fields
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - of this test
        assert type(again) is kind
        assert (str(again), vars(again)) == (str(error), vars(error))
        assert again.__notes__ == ["hint: take fewer"]
        assert again.exit_code == error.exit_code
