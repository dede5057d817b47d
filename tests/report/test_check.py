"""What ``check`` shows of a file."""

from __future__ import annotations

import pytest

from parastrat.finding import Finding, Severity
from parastrat.report.check import check_text
from parastrat.report.text import Paper

LONG = "x" * 150 + "HERE" + "y" * 150


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("text", [LONG, "HERE" + "y" * 300, "x" * 300 + "HERE", "HERE"])
def test_of_a_long_line_the_place_is_shown(text: str, width: int) -> None:
    """It was cut behind 200 columns, wherever the place was, and ran over the screen."""
    found = Finding(
        code="PS601",
        severity=Severity.ERROR,
        message="wrong",
        fix="mend it",
        url="",
        path="a.json",
        line=1,
        column=text.index("HERE") + 1,
    )
    rows = check_text([found], {"a.json": [text]}, Paper(width=width)).splitlines()
    shown, caret = rows[2], rows[3]
    assert max(map(len, rows)) <= width
    assert shown[caret.index("^") :].startswith("HERE")
