"""The closed form's peaks beside dry runs of the same plans: the runtime's own wrapping on fake tensors.

Usage: python benchmarks/dry_runs.py [--state FILE] [--each COUNT] [--jobs COUNT] [--until HH:MM] [--write]

Of every decoder preset up to 405B so many combinations of a way and a recompute policy, drawn once and for
all, on the model cut to four blocks; one of every model with context parallelism, of every second with
tensor parallelism beside it, and of every third beside stages; five of every mixture with expert
parallelism, two of them beside stages; ten at full depth; and 28 whose loss comes in chunks. Compared are
bytes of tensors on the rank that needs most: what the estimate has without its overhead, and what lives,
each at its own moment of most. The state keeps what dry runs found, one line each: a run that ended early
goes on there, and none begins after ``--until``. ``--write`` writes docs/dry_runs.md from what the state
has; why combinations are off stands in benchmarks/data/dry_runs.toml.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dry_run_combinations import WAYS, combinations
from dry_run_peaks import STATE, compared, read_state, summary, told
from dry_runs_page import PAGE, page

from parastrat.runtime.dry_run import preload


def main() -> None:
    """Print every comparison, and what the errors come to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--each", type=int, default=3, help="combinations of each model")
    parser.add_argument("--jobs", type=int, default=2, help="dry runs at once")
    parser.add_argument("--until", help="of the clock: no dry run begins later")
    parser.add_argument("--write", action="store_true", help="docs/dry_runs.md")
    given = parser.parse_args()
    drawn, lines = combinations(given.each), read_state(given.state)
    preload("transformers.models.llama.modeling_llama")
    with ThreadPoolExecutor(max_workers=given.jobs) as pool:
        found = pool.map(lambda each: told(each, compared, given.state, lines, given.until), drawn)
        every = [each for each in found if each is not None]
    if given.write:
        PAGE.write_text(page(every, len(drawn)), encoding="utf-8")
    ran = [each for each in every if each.dry_run is not None]
    for way in WAYS:
        own = [each for each in ran if each.of.way == way]
        if own:
            print(f"{way}: {summary(own)}")
    whole = [each for each in ran if each.of.blocks is None]
    chunked = [each for each in ran if each.of.chunks > 1]
    for name, chosen in (("whole", whole), ("loss in chunks", chunked), ("all", ran)):
        if chosen:
            print(f"{name}: {summary(chosen)}; {len(every) - len(ran)} refused")


if __name__ == "__main__":
    main()
