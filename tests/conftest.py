"""Files of tests run side by side, one on each core; with more threads than one they would only wait."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
from drawn import drawn
from hypothesis import settings

# read when torch is imported, here and in every process that a test starts
os.environ.setdefault("OMP_NUM_THREADS", "1")

# how long an example takes says what else a machine does
settings.register_profile("parastrat", deadline=None)
settings.load_profile("parastrat")

_TESTS = Path(__file__).parent
#: where files start several training processes each: minutes on two cores. Of such files in one folder a
#: run takes a quarter, of a few all, and those that say always; so a file that is asked for by name is run
_TRAINING = (_TESTS / "runtime", _TESTS / "emit")
_SHARE, _FEW = 4, 3


def pytest_report_header() -> str:
    which = "all" if "PARASTRAT_TEST_ALL" in os.environ else "a quarter, drawn by the commit"
    return f"files that train on several ranks: {which}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out files that this commit does not draw, and begin with those that have slow tests.

    At the end a core would wait for the other's.
    """
    slow, always = (
        {item.path for item in items if item.get_closest_marker(marker)} for marker in ("slow", "always")
    )
    training = defaultdict(list)
    for path in sorted(slow - always):
        if any(folder in path.parents for folder in _TRAINING):
            training[path.parent].append(path)
    left = {
        path
        for paths in training.values()
        for path in {*paths}.difference(drawn(paths, max(_FEW, len(paths) // _SHARE)))
    }
    config.hook.pytest_deselected(items=[item for item in items if item.path in left])
    items[:] = sorted(
        (item for item in items if item.path not in left), key=lambda item: item.path not in slow
    )


@pytest.fixture(scope="session")
def forked() -> None:
    """Processes that parastrat starts are forked from the tests' own server, which has imported all."""
    from runtime.ranks import start_server

    start_server()
