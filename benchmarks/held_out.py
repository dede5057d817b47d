"""Published runs predicted by constants that never saw them.

Usage: python benchmarks/held_out.py [--write]

Three ways, each from the same neutral constants (``neutral``). Those that are fitted in the stack's profile
(``fitted`` there) are corrected by ``parastrat.measured.fitting``, as ``parastrat validate -o`` corrects a
user's own stack:

- *source left out*: by the runs of other sources on the same stack; where there is none, by nothing;
- *known stack*: by those and by the source's other models, in five parts;
- *one measurement*: by those of other sources and one run of the source, five times drawn.

Mixtures of experts are told apart: dense runs correct what they have in common with them, and their runs
correct nothing about dense ones. Written to docs/held_out.md with ``--write``.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neutral import neutral
from residuals import lines as left_of_errors
from straight import lines as summed_up

from parastrat.correction import StackFit
from parastrat.measured import read_rows
from parastrat.measured.comparison import is_timed
from parastrat.measured.constants import EVERY_CONSTANT, constants_of
from parastrat.measured.fitting import Run, fitted, predicted, run_of, unsureness
from parastrat.measured.models import has_experts
from parastrat.measured.rates import unknown_rate
from parastrat.stack import Stack

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "data" / "published.csv"
PAGE = ROOT / "docs" / "held_out.md"
#: sources with fewer runs say little
_LEAST_ROWS = 8
_PARTS = 5
_DRAWS = 5
#: of runs whose constants are known: what parastrat.measured.fitting takes for it
_SCATTER = 0.06
#: stacks that are not PyTorch's
_OTHERS = {"jax"}

_HEAD = f"""\
# Step times by constants that never saw the runs

Made by `python benchmarks/held_out.py --write`: published runs (`benchmarks/data`) on PyTorch stacks, of
sources with at least {_LEAST_ROWS} of them. Constants begin neutral (`benchmarks/neutral.py`; nothing
here was fitted to them), and other runs correct those of each stack that its profile calls `fitted`, or
those of `parastrat validate -o` where it calls none so:

- *source left out*: by other sources' runs on the same stack; foundry, vtrain and titan are alone on
  theirs, so that nothing is;
- *known stack*: by those and by four fifths of the source's models, the last fifth being predicted;
- *one measurement*: by other sources' runs and one run of the source, drawn five times.

A step's time on a device under a power limit that its source does not tell is unknown, and not predicted
(`parastrat/measured/rates.py`). What the figures are with such runs stands below the tables: the mean over
sources, the median and the 90th percentile.

An error is predicted / measured - 1. The interval told with each prediction is as wide as its constants are
unsure, {len(EVERY_CONSTANT)} of them and its device's rate, fitted or not
(`parastrat/measured/constants.py`), and {100 * _SCATTER:.0f} % that none explains, times what holds 80 %
of the errors of all other sources with {_LEAST_ROWS} runs or more, each weighed alike, dense runs and
mixtures of experts apart. Nothing of a source tells how wide its own are. The structure of the cost model,
the figures of devices, the other constants, and which uncertainties and sources make an interval were
chosen with these runs in sight: expect more on runs that nobody saw.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A run, and what it counts among."""

    source: str
    stack: str
    model: str
    experts: bool
    language: bool
    run: Run
    #: whether its device's rates are known; others are told beside the tables, and teach nothing
    known_rate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A run's error, the logarithm of predicted over measured, and the half-width told with it."""

    of: Published
    error: float
    #: standard deviation that the constants leave, a logarithm
    unsure: float = 0.0
    half_width: float = 0.0

    @property
    def spread(self) -> float:
        """Standard deviation, of what no constant explains too."""
        return math.hypot(self.unsure, _SCATTER)


def published() -> tuple[list[Published], dict[str, dict[bool, int]]]:
    """Return the runs that can be predicted, and how many each source has, with experts and without."""
    found: list[Published] = []
    all_of: dict[str, dict[bool, int]] = defaultdict(lambda: {False: 0, True: 0})
    for row in read_rows(TABLE).rows:
        source = row.origin
        if row.stack in _OTHERS or (row.status or "ok").lower() != "ok" or not is_timed(row):
            continue
        experts = has_experts(row)
        all_of[source][experts] += 1
        run = run_of(row)
        if run is not None:
            found.append(
                Published(
                    source=source,
                    stack=run.stack,
                    model=row.model,
                    experts=experts,
                    language=row.seq_len is not None,
                    run=run,
                    known_rate=unknown_rate(row) is None,
                )
            )
    large = {source for source, counts in all_of.items() if sum(counts.values()) >= _LEAST_ROWS}
    return [each for each in found if each.source in large], all_of


class Fitter:
    """Fits, and remembers each run's seconds on each stack: neutral ones are asked for again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Stack], float] = {}

    def seconds(self, run: Run, stack: Stack) -> float:
        key = id(run), stack
        if key not in self._known:
            self._known[key] = predicted(run, stack)
        return self._known[key]

    def fit(self, runs: Iterable[Published], stack: str) -> StackFit:
        prior, own = neutral(stack), [each.run for each in runs]
        devices = (each.job.facts.hardware.device.name for each in own)
        return fitted(own, prior, constants_of(prior, devices), predict=self.seconds)

    def predicted(self, of: Sequence[Published], name: str, fit: StackFit) -> list[Prediction]:
        prior = neutral(name)
        return [
            Prediction(
                of=each,
                error=math.log(self.seconds(each.run, fit.stack) / each.run.seconds),
                unsure=unsureness(each.run, prior, fit, self.seconds),
            )
            for each in of
        ]


Runs = Sequence[Published]
Split = tuple[str, list[Published], list[Published]]


def source_left_out(runs: Runs, beside: Runs) -> Iterator[Split]:
    """Yield each source's runs of a stack as what is predicted, with what may be learned from."""
    for source, stack in sorted({(each.source, each.stack) for each in runs}):
        others = [each for each in (*runs, *beside) if each.stack == stack and each.source != source]
        yield stack, others, [each for each in runs if each.stack == stack and each.source == source]


def known_stack(runs: Runs, beside: Runs) -> Iterator[Split]:
    """Yield a fifth of a source's models as what is predicted, with all else of the stack."""
    for stack, others, own in source_left_out(runs, beside):
        of_source = [each for each in beside if each.stack == stack and each.source == own[0].source]
        models = sorted({each.model for each in own})
        random.Random(0).shuffle(models)  # noqa: S311 - a draw that can be repeated
        for part in range(min(_PARTS, len(models))):
            out = set(models[part::_PARTS])
            seen = [each for each in own if each.model not in out]
            yield stack, [*others, *of_source, *seen], [each for each in own if each.model in out]


def taught_by(runs: Runs) -> list[Published]:
    """Return the runs that constants may be learned from: those whose device's rates are known."""
    return [each for each in runs if each.known_rate]


def one_measurement(runs: Runs, beside: Runs) -> Iterator[Split]:
    """Yield a source's runs but one, which is learned from beside other sources."""
    for stack, others, own in source_left_out(runs, beside):
        for draw in range(min(_DRAWS, len(own)) if len(own) > 1 else 0):
            seen = random.Random(draw).choice(taught_by(own))  # noqa: S311
            yield stack, [*others, seen], [each for each in own if each is not seen]


#: of runs, and others beside them that are learned from, each way to leave some out
Way = Callable[[Runs, Runs], Iterator[Split]]
WAYS: dict[str, Way] = {
    "source left out": source_left_out,
    "known stack": known_stack,
    "one measurement": one_measurement,
}


def predictions(fitter: Fitter, runs: Runs, way: Way, beside: Runs = ()) -> list[Prediction]:
    """Return each run's errors by constants that did not see it."""
    found: list[Prediction] = []
    for stack, learned, own in way(runs, beside):
        found += fitter.predicted(own, stack, fitter.fit(taught_by(learned), stack))
    return found


def with_intervals(found: list[Prediction]) -> list[Prediction]:
    """Return predictions with half-widths of their spread times what holds 80 % of all other sources.

    How unsure constants are differs from run to run and says how wide intervals are beside each other; how
    wide they are altogether is told by sources on all stacks, and by nothing of the source itself.
    """
    runs: dict[str, set[int]] = defaultdict(set)
    for each in found:
        runs[each.of.source].add(id(each.of))
    telling = {source for source, own in runs.items() if len(own) >= _LEAST_ROWS}

    def factor(source: str) -> float:
        others: dict[str, list[float]] = defaultdict(list)
        for each in found:
            if each.of.source in telling - {source}:
                others[each.of.source].append(abs(each.error) / each.spread)
        # each source weighs alike
        each_one = [(size, 1 / len(sizes)) for sizes in others.values() for size in sizes]
        total, reached = sum(weight for _, weight in each_one), 0.0
        for size, weight in sorted(each_one):
            reached += weight
            if reached >= 0.8 * total:
                return size
        return math.inf

    factors = {source: factor(source) for source in {each.of.source for each in found}}
    return [replace(each, half_width=factors[each.of.source] * each.spread) for each in found]


def table_lines(found: list[Prediction], counts: dict[str, int]) -> Iterator[str]:
    """Yield a table of errors by source, and over all of them."""
    yield (
        "| source | rows | predicted | mean | median | 90th percentile | bias | within the interval "
        "| its half (median) |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    means = []
    for source in sorted({each.of.source for each in found}):
        own = [each for each in found if each.of.source == source]
        shares = [math.expm1(each.error) for each in own]
        sizes = sorted(map(abs, shares))
        means.append(statistics.fmean(sizes))
        inside = statistics.fmean(abs(each.error) <= each.half_width for each in own)
        rows = len({id(each.of) for each in own})
        yield (
            f"| {source} | {counts[source]} | {rows} | {_percent(means[-1])} | "
            f"{_percent(statistics.median(sizes))} | {_percent(_p90(sizes))} | "
            f"{100 * statistics.fmean(shares):+.1f} % | {100 * inside:.0f} % | {_half(own)} |"
        )
    sizes = sorted(abs(math.expm1(each.error)) for each in found)
    inside = statistics.fmean(abs(each.error) <= each.half_width for each in found)
    rows = len({id(each.of) for each in found})
    yield (
        f"| **mean over sources, row by row** | {sum(counts.values())} | {rows} | "
        f"**{_percent(statistics.fmean(means))}** | **{_percent(statistics.median(sizes))}** | "
        f"**{_percent(_p90(sizes))}** | | {100 * inside:.0f} % | {_half(found)} |"
    )


def aside_lines(found: list[Prediction]) -> Iterator[str]:
    """Yield the figures with runs whose device's rates are unknown, predicted by those of its profile."""
    aside = {id(each.of): each.of.source for each in found if not each.of.known_rate}
    if not aside:
        return
    means = [
        statistics.fmean(abs(math.expm1(each.error)) for each in found if each.of.source == source)
        for source in sorted({each.of.source for each in found})
    ]
    sizes = sorted(abs(math.expm1(each.error)) for each in found)
    own = statistics.fmean(abs(math.expm1(each.error)) for each in found if not each.of.known_rate)
    yield ""
    sources = ", ".join(sorted(set(aside.values())))
    figures = statistics.fmean(means), statistics.median(sizes), _p90(sizes)
    yield (
        f"With {len(aside)} more of {sources}, whose devices are power limited to what nobody says, "
        f"predicted as if they were not ({_percent(own)} off): {', '.join(map(_percent, figures))}."
    )


def _p90(sizes: list[float]) -> float:
    return sizes[math.ceil(0.9 * len(sizes)) - 1]


def _half(found: list[Prediction]) -> str:
    """Return the median half-width: by how much more than predicted a run may take."""
    return _percent(statistics.median(math.expm1(each.half_width) for each in found))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    """Print or write the page."""
    runs, all_of = published()
    fitter = Fitter()
    lines, dense = [_HEAD], {}
    for experts in (False, True):
        own = [each for each in runs if each.experts is experts and each.language]
        beside = [each for each in runs if experts and each.language and not each.experts]
        counts = {source: all_of[source][experts] for source in {each.source for each in own}}
        for name, way in WAYS.items():
            lines += [f"## {'Mixtures of experts' if experts else 'Dense'}: {name}", ""]
            found = predictions(fitter, own, way, beside)
            known = with_intervals([each for each in found if each.of.known_rate])
            lines += [*table_lines(known, counts), *aside_lines(found), ""]
            if not experts:
                dense[name] = [each.of.run for each in known], [each.error for each in known]
    lines += summed_up(read_rows(TABLE), dense)
    lines += left_of_errors(dense["source left out"], dense["known stack"])
    text = "\n".join(lines).rstrip() + "\n"
    print(text, end="")
    if "--write" in sys.argv:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
