"""The command line in this process, as ``main`` runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from parastrat.cli.main import main


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        table = json.loads(self.out)
        assert isinstance(table, dict)
        return table


Typed = Callable[..., Done]


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str]) -> Typed:
    """Run ``parastrat`` with some arguments; a traceback fails the test by being raised."""

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        code = left.value.code
        out, err = capfd.readouterr()
        return Done(code=code if isinstance(code, int) else 0, out=out, err=err)

    return run
