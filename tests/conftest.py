"""Files of tests run side by side, one on each core; with more threads than one they would only wait."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# read when torch is imported, here and in every process that a test starts
os.environ.setdefault("OMP_NUM_THREADS", "1")

# how long an example takes says what else a machine does
settings.register_profile("parastrat", deadline=None)
settings.load_profile("parastrat")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests: at the end a core would wait for the other's."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def forked() -> None:
    """Processes that parastrat starts are forked from the tests' own server, which has imported all."""
    from runtime.ranks import start_server

    start_server()
