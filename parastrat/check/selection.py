"""Which findings are told: those of wanted rules, less the ones that somebody left out with a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.finding import Ignored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from parastrat.check.checked import Checked
    from parastrat.check.settings import Ignore, Settings


def with_settings(checked: Checked, settings: Settings) -> Checked:
    """Return what is told of a file; what is not told is counted."""
    wanted = [found for found in checked.findings if _is_wanted(found.code, settings)]
    kept = [found for found in wanted if _ignore_of(found.code, settings) is None]
    left_out = [
        (found.code, ignore) for found in wanted if (ignore := _ignore_of(found.code, settings)) is not None
    ]
    return replace(
        checked,
        findings=tuple(kept),
        ignored=tuple(
            Ignored(code=code, count=count, reason=ignore.reason, stated_in=ignore.stated_in)
            for (code, ignore), count in Counter(left_out).items()
        ),
        not_selected=len(checked.findings) - len(wanted),
        open=tuple(
            code for code in checked.open if _is_wanted(code, settings) and not _ignore_of(code, settings)
        ),
        settings=settings.shown,
    )


def _is_wanted(code: str, settings: Settings) -> bool:
    return settings.select is None or code.startswith(settings.select)


def _ignore_of(code: str, settings: Settings) -> Ignore | None:
    """Return why a rule is left out: what names it most exactly, and of those the last."""
    fitting = [ignore for ignore in settings.ignore if code.startswith(ignore.prefix)]
    return max(reversed(fitting), key=lambda ignore: len(ignore.prefix), default=None)


def all_ignored(each: Iterable[Checked]) -> tuple[Ignored, ...]:
    """Return what was left out of all files, added up by rule and reason."""
    counts: Counter[Ignored] = Counter()
    for checked in each:
        for ignored in checked.ignored:
            counts[replace(ignored, count=0)] += ignored.count
    told = sorted(counts, key=lambda ignored: (ignored.code, ignored.stated_in, ignored.reason))
    return tuple(replace(ignored, count=counts[ignored]) for ignored in told)
