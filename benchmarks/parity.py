"""Small models under every strategy against one device: losses of 20 steps, gradients of the first.

Usage: python benchmarks/parity.py [--state FILE] [--minutes N] [--only TEXT] [--broken] [--write]
                                  [--transformers [--own | --experts] | --libraries [NAME ...]]
                                  [--draw N [--seed TEXT]]

Results are kept in FILE (parity.jsonl), and cells in it are not run again. ``--only`` takes cells whose
name ("llama, pp 1f1b") has the text. ``--broken`` gives the last rank wrong weights: every cell that is
not refused must come out wrong. ``--write`` writes docs/parity.md from all of FILE. ``--transformers``
takes model classes of the installed transformers instead, one of each family and then the others, built
from shrunk configs, under FSDP2, TP and 1F1B; what no recipe that is tried builds so small, or calls, is
counted as untried. ``--own`` gives them the vocabularies of their own and up to 120 million parameters,
under TP and 1F1B: what is proven on a smaller copy. ``--experts`` takes those whose modules have experts,
under EP. ``--libraries`` takes models of public libraries, of those named (``timm``)
or of all that are installed (``benchmarks/libraries`` builds them), under FSDP2, TP and 1F1B.
``--draw`` takes N cells, classes or models that TEXT (a commit's hash) draws.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parity_cells import VERDICTS, Cell, outcomes
from parity_libraries import names as names_in
from parity_models import SUBJECTS
from parity_page import page
from parity_ranks import OFTEN_OF_EXPERTS, STRATEGIES, Job
from parity_transformers import OWN, names_with_experts
from parity_transformers import names as names_in_transformers

PAGE = Path(__file__).parents[1] / "docs" / "parity.md"
#: strategies of classes of transformers, and of models of libraries
OFTEN = ("fsdp2", "tp", "pp 1f1b")
#: and of those in sizes of their own
OFTEN_OF_OWN = ("tp", "pp 1f1b")


def main() -> None:
    """Run what is not known yet; exit 1 if a cell is wrong or crashed (or, broken, is not wrong)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--state", type=Path, default=Path("parity.jsonl"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--libraries", nargs="*", metavar="NAME")
    parser.add_argument("--draw", type=int)
    parser.add_argument("--seed", default="0")
    given = parser.parse_args()
    cells = _known(given.state)
    named = [cell for cell in _named(given) if given.only in ", ".join(cell)]
    _fill([cell for cell in named if cell not in cells], cells, given)
    chosen = [cells[cell] for cell in named if cell in cells]
    counts = Counter(cell.verdict for cell in chosen)
    print("; ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS), f"of {len(chosen)} cells")
    if given.write:
        PAGE.write_text(page(list(cells.values()), len(names_in_transformers())), encoding="utf-8")
    bad = counts["works"] if given.broken else counts["wrong"] + counts["crashed"]
    sys.exit(1 if bad else 0)


def _named(given: Any) -> list[tuple[str, str]]:
    def drawn(of: list[Any]) -> list[Any]:
        return of if given.draw is None else random.Random(given.seed).sample(of, given.draw)  # noqa: S311

    if given.libraries is not None:
        return [(model, strategy) for model in drawn(names_in(given.libraries)) for strategy in OFTEN]
    if not given.transformers:
        return drawn([(model, strategy) for strategy in STRATEGIES for model in SUBJECTS])
    if given.experts:
        return [(model, strategy) for model in drawn(names_with_experts()) for strategy in OFTEN_OF_EXPERTS]
    behind, often = (OWN, OFTEN_OF_OWN) if given.own else ("", OFTEN)
    return [(model + behind, strategy) for model in drawn(names_in_transformers()) for strategy in often]


def _known(state: Path) -> dict[tuple[str, str], Cell]:
    lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
    cells = [Cell(**json.loads(line)) for line in lines]
    return {(cell.model, cell.strategy): cell for cell in cells}


def _fill(wanted: list[tuple[str, str]], cells: dict[tuple[str, str], Cell], given: Any) -> None:
    end = time.monotonic() + 60 * given.minutes
    jobs = [Job(model=model, strategy=strategy, broken=given.broken) for model, strategy in wanted]
    for cell in outcomes(jobs):
        cells[cell.model, cell.strategy] = cell
        print(
            f"{cell.model}, {cell.strategy}: {cell.verdict} {cell.reason} ({cell.seconds:.1f} s)",
            flush=True,
        )
        with given.state.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(cell)) + "\n")
        if time.monotonic() > end:
            print("out of time; run again to go on")
            break


if __name__ == "__main__":
    main()
