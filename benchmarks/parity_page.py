"""The parity table and the breadth over the classes of transformers as docs/parity.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from parity_cells import GRADIENT_TOLERANCE, LOSS_TOLERANCE, VERDICTS, Cell
from parity_libraries import is_of_library
from parity_models import SUBJECTS
from parity_ranks import OFTEN_OF_EXPERTS, STRATEGIES
from parity_transformers import OWN

_HEAD = f"""\
# Parity

Small models trained for 20 steps in fp32 on CPU ranks (Gloo), every micro-batch with another number of
targets, against one process in plain torch: losses within {LOSS_TOLERANCE:.0e}, gradients of the first step
within {GRADIENT_TOLERANCE:.0e} of each parameter's largest (of the model's largest where a gradient is zero
but for rounding). Where those agree and a later loss does not, the run is repeated in fp64 from the same
weights, where rounding tips no ReLU over: what is wrong stays wrong. Where gradients are up to ten times
that apart and fp64 has them alike, rounding moved them, and the cell counts as untried. Written by
`python benchmarks/parity.py --write`.
"""
_BREADTH = """\
## Classes of transformers

Model classes of the installed transformers that nobody chose, built from configs that a script shrinks,
called with what their forward accepts, trained for 5 steps under FSDP2, under TP and in a 1F1B pipeline on
two ranks; losses and gradients as above. One class of each family comes first, then further ones. A class
is tried where one of the recipes (fixed small sizes; an eighth or a thirty-second of every width; what
names of fields have in common; two layers; as it is) gives at most 30 million parameters, a step of two
samples within 3 s, and a model that takes tokens, boxes, images, sound or a series, without drawing (in
evaluation mode where it draws in training), and that the last bit of its weights does not move by more
than is allowed.
"""
_OF_EXPERTS = """\
## Classes of transformers with experts

Those in whose modules there are experts, under EP on two ranks, and under EP beside TP, with the sequence
divided too, and beside stages, on four; built, trained and compared as above.
"""
_OF_LIBRARIES = """\
## Models of public libraries

Small models of timm, torchvision, diffusers and others, as `benchmarks/libraries` builds them, for 3 steps
under FSDP2, under TP and in a 1F1B pipeline on two ranks, compared as above.
"""
_OF_OWN = """\
## Classes of transformers in sizes of their own

The same classes as their config makes them, or with two layers of its widths, or of a half, a quarter or an
eighth of them, and the whole vocabulary: the first of these with 30 to 120 million parameters is taken, as
above 30 million a tensor-parallel layout is proven on a smaller copy. Two steps, under TP and in a pipeline
on two ranks. Reached so far are those that a shuffled order has first.
"""
_SIGNS = {"works": "✓", "refused": "no", "crashed": "**crash**", "wrong": "**wrong**", "untried": "untried"}
#: what stands behind an untried class; the first that is found in its reasons
_UNTRIED = {
    "asks for a package that is not installed": r"ImportError|ModuleNotFoundError",
    "draws, or keeps a state": r"it draws",
    "takes too long": r"take longer than",
    "is moved by rounding": r"the last bit|move its losses|in fp64; in fp32",
    "is not finite, or has no gradient": r"not finite|gradients are zero",
    "is not called with what the recipes know": r"missing \d+ required|ou must specify|ou have to specify|"
    r"no inputs known|not one of samples|labels must|is required as",
    "does not build, or run, with any of the small sizes": r"Error",
    "is too large with every recipe": r"has [\d,]+ parameters",
}


def page(cells: list[Cell], classes: int) -> str:
    """Return the page.

    Args:
        cells: of models and of classes of transformers.
        classes: of transformers that there are.
    """
    chosen = [cell for cell in cells if cell.model in SUBJECTS]
    own = [cell for cell in cells if cell.model.endswith(OWN)]
    experts = [cell for cell in cells if cell.model not in SUBJECTS and cell.strategy in OFTEN_OF_EXPERTS]
    of_libraries = [cell for cell in cells if is_of_library(cell.model)]
    told = (*own, *experts, *of_libraries)
    found = [cell for cell in cells if cell.model not in SUBJECTS and cell not in told]
    lines = [_HEAD, *_table(chosen), *_reasons(chosen, "Refused or crashed, and why")]
    lines += _furthest(chosen)
    if found:
        lines += [
            "",
            _BREADTH,
            *_breadth(found, classes),
            *_reasons(found, "Refused or crashed there, and why"),
        ]
        lines += [*_furthest(found), "", *_untried(found)]
    if own:
        lines += [
            "",
            _OF_OWN,
            *_breadth(own, classes),
            *_reasons(own, "Refused or crashed of these, and why"),
        ]
        lines += _furthest(own)
    if experts:
        lines += ["", *of_experts(experts)]
    if of_libraries:
        lines += ["", _OF_LIBRARIES, *_breadth(of_libraries, len({cell.model for cell in of_libraries}))]
        lines += [*_reasons(of_libraries, "Refused or crashed in libraries, and why")]
        lines += [*_furthest(of_libraries), "", *_untried(of_libraries)]
    return "\n".join(lines) + "\n"


def of_experts(cells: list[Cell]) -> Iterator[str]:
    """Yield the lines on classes with experts."""
    yield _OF_EXPERTS
    yield from _breadth(cells, len({cell.model for cell in cells}))
    yield from _reasons(cells, "Refused or crashed of those, and why")
    yield from _furthest(cells)


def _counts(cells: Iterable[Cell]) -> str:
    counts = Counter(cell.verdict for cell in cells)
    return "; ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if verdict != "untried")


def _table(cells: list[Cell]) -> Iterator[str]:
    found = {(cell.model, cell.strategy): cell for cell in cells}
    models = [model for model in SUBJECTS if any(key[0] == model for key in found)]
    share = _share(sum(cell.verdict == "works" for cell in cells), len(cells))
    whole = len(SUBJECTS) * len(STRATEGIES)
    yield f"{len(cells)} of {whole} cells were run: {_counts(cells)}; {share} of these work."
    if len(cells) < whole:
        yield "Cells that were not run are empty."
    yield ""
    yield "| | " + " | ".join(models) + " |"
    yield "|---|" + "---|" * len(models)
    for strategy in STRATEGIES:
        row = [found.get((model, strategy)) for model in models]
        if any(row):
            shown = (_SIGNS[cell.verdict] if cell else "" for cell in row)
            yield f"| {strategy} | " + " | ".join(shown) + " |"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


def _reasons(cells: list[Cell], title: str) -> Iterator[str]:
    reasons = _grouped(
        (cell for cell in cells if cell.verdict not in {"works", "untried"}),
        lambda cell: f"{cell.verdict}: {_short(cell)}",
    )
    if reasons:
        yield from ("", f"### {title}", "")
    for reason, group in sorted(reasons.items()):
        yield f"- {reason} ({'; '.join(f'{cell.model}, {cell.strategy}' for cell in group)})"


def _grouped(cells: Iterable[Cell], key: Callable[[Cell], str]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    return found


def _short(cell: Cell) -> str:
    """Return a reason in one line that a table can hold, without the name of the model."""
    reason = re.sub(r"of this \w+", "of it", " ".join(cell.reason.split()))
    reason = re.sub(r"^\w+ can be cut", "it can be cut", reason)
    return reason if len(reason) <= 300 else reason[:300] + " …"


def _furthest(cells: list[Cell]) -> Iterator[str]:
    working = [cell for cell in cells if cell.verdict == "works"]
    if working:
        worst = max(working, key=lambda cell: cell.loss_apart)
        steepest = max(working, key=lambda cell: cell.gradient_apart)
        yield ""
        yield (
            f"Furthest apart of those that work: losses {worst.loss_apart:.1e} ({worst.model}, "
            f"{worst.strategy}), gradients {steepest.gradient_apart:.1e} ({steepest.model}, "
            f"{steepest.strategy})."
        )


def _breadth(cells: list[Cell], classes: int) -> Iterator[str]:
    reached = {cell.model for cell in cells}
    untried = {cell.model for cell in cells if cell.verdict == "untried"}
    yield (
        f"{len(reached)} of {classes} classes were reached, {len(reached - untried)} of these "
        f"({_share(len(reached - untried), len(reached))}) tried."
    )
    yield ""
    yield "| | tried | works | refused | crashed | wrong | works of those tried |"
    yield "|---|---|---|---|---|---|---|"
    for strategy, group in _grouped(cells, lambda cell: cell.strategy).items():
        tried = [cell for cell in group if cell.verdict != "untried"]
        counts = Counter(cell.verdict for cell in tried)
        numbers = " | ".join(str(counts[verdict]) for verdict in VERDICTS if verdict != "untried")
        yield f"| {strategy} | {len(tried)} | {numbers} | {_share(counts['works'], len(tried))} |"


def _untried(cells: list[Cell]) -> Iterator[str]:
    models = {cell.model: cell for cell in cells if cell.verdict == "untried"}
    if models:
        yield from ("### Untried, and why", "")
    for why, group in sorted(_grouped(models.values(), _why).items()):
        names = ", ".join(sorted(cell.model for cell in group))
        yield f"- {why}: {len(group)} ({names})"


def _why(cell: Cell) -> str:
    return next(why for why, found in _UNTRIED.items() if re.search(found, cell.reason))
