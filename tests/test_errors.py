"""Errors reach other processes as they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from parastrat.errors import CountError, ParastratError
from parastrat.parse.problems import MalformedPlanError, PlanSyntaxError, Problem
from parastrat.sources.hf_fields import UnknownFormError

#: of kinds that are made of something else than a message and a hint
MADE: dict[type[ParastratError], ParastratError] = {
    CountError: CountError("too many", hint="take fewer", fields=("tp", "pp")),
    MalformedPlanError: MalformedPlanError(Path("plan.toml"), [Problem(key="tp", text="bad", hint="mend")]),
    PlanSyntaxError: PlanSyntaxError(Path("plan.toml"), "no value", (3, 5)),
    UnknownFormError: UnknownFormError("a family without a closed form"),
}


def kinds(of: type[ParastratError] = ParastratError) -> Iterator[type[ParastratError]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_behind_pickle(kind: type[ParastratError]) -> None:
    error = MADE[kind] if kind in MADE else kind("too many", hint="take fewer")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - of this test
        assert type(again) is kind
        assert (str(again), vars(again)) == (str(error), vars(error))
        assert again.__notes__ == [f"hint: {error.hint}"]
        assert again.exit_code == error.exit_code
