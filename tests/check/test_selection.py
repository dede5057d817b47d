"""Which findings are told, and how what is not told is counted."""

from __future__ import annotations

from pathlib import Path

from parastrat.check import Checked, Ignore, Settings, all_ignored, with_settings
from parastrat.finding import Finding, Severity


def checked(*codes: str) -> Checked:
    findings = tuple(
        Finding(code=code, severity=Severity.ERROR, message="", fix="", url="") for code in codes
    )
    return Checked(path=Path("a.json"), format=None, findings=findings, lines=(), open=("PS201", "PS301"))


def ignore(prefix: str, reason: str) -> Ignore:
    return Ignore(prefix=prefix, reason=reason, stated_in="here")


def test_the_most_exact_reason_is_told() -> None:
    settings = Settings(ignore=(ignore("PS602", "exact"), ignore("PS6", "family")))
    told = with_settings(checked("PS602", "PS601"), settings)
    assert [(each.code, each.reason) for each in told.ignored] == [("PS602", "exact"), ("PS601", "family")]


def test_of_two_reasons_the_later_is_told() -> None:
    settings = Settings(ignore=(ignore("PS602", "all files"), ignore("PS602", "this path")))
    assert [each.reason for each in with_settings(checked("PS602"), settings).ignored] == ["this path"]


def test_what_nobody_asks_for_is_not_ignored_as_well() -> None:
    settings = Settings(select=("PS2",), ignore=(ignore("PS6", "family"), ignore("PS201", "known")))
    told = with_settings(checked("PS201", "PS202", "PS602"), settings)
    assert [each.code for each in told.findings] == ["PS202"]
    assert ([each.code for each in told.ignored], told.not_selected) == (["PS201"], 1)
    assert told.open == ()


def test_counts_add_up_over_findings_and_files() -> None:
    settings = Settings(ignore=(ignore("PS602", "x"),))
    files = [with_settings(checked("PS602", "PS602"), settings), with_settings(checked("PS602"), settings)]
    (told,) = all_ignored(files)
    assert (told.code, told.count) == ("PS602", 3)
