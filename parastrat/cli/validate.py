"""``parastrat validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from parastrat.correction import StackFit
    from parastrat.measured import Table

Cases = Annotated[
    Path,
    typer.Argument(metavar="CASES.csv", help="One measured run a line; the first line names the columns."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Correct the constants of the runs' stack by them, and write it, for --stack FILE.",
        show_default=False,
    ),
]


def validate(cases: Cases, *, output: Output = None, as_json: AsJson = False) -> None:
    """Predict measured runs, and show how far off the predictions are.

    Columns: id, model, gpus, stack, hardware or gpu, precision, the mesh (tp, pp, cp, ep, dp), fsdp,
    act_ckpt, micro_batch, global_batch, seq_len, and what was measured: step_time_s, tokens_per_s_per_gpu
    or samples_per_s; peak_mem_gib with mem_metric (reserved, allocated, nvidia-smi). A blank is unknown.
    Exits 1 where no run can be predicted.
    """
    from parastrat.cli.output import paper, show, show_json
    from parastrat.measured import compared, read_rows
    from parastrat.report.validation import validation_json, validation_text

    if output is not None:
        _check_target(output)
    table = read_rows(cases)
    comparison = compared(table)
    fit = None if output is None else _corrected(table, cases, output)
    if as_json:
        show_json(validation_json(comparison, fit))
    else:
        show(validation_text(comparison, paper(), fit))
    if not comparison.rows:
        raise typer.Exit(1)


def _check_target(path: Path) -> None:
    from parastrat.cli.files import refuse_others

    refuse_others(path, "parastrat.stack/", "stack file")


def _corrected(table: Table, cases: Path, output: Path) -> StackFit:
    """Write the runs' stack with constants that these runs correct.

    Raises:
        UsageError: the runs are of several stacks, none of them says how long it took, or nothing can be
            written there.
    """
    from parastrat.cli.files import write_files
    from parastrat.emit import TextFile
    from parastrat.errors import UsageError
    from parastrat.measured import fitted, runs_of
    from parastrat.parse.stack_file import StackChange, stack_toml
    from parastrat.profiles import load_stack

    runs = runs_of(table.rows)
    if not runs:
        raise UsageError(
            f"{cases}: no run can be predicted and says how long it took, so nothing is corrected",
            hint="see without -o why each was left out",
        )
    names = sorted({run.stack for run in runs})
    if len(names) > 1:
        raise UsageError(
            f"{cases} has runs of {len(names)} stacks: {', '.join(names)}",
            hint="keep the runs of one in a table of their own, and correct that",
        )
    fit = fitted(runs, load_stack(names[0]))
    change = StackChange(
        base=names[0],
        constants=fit.changes,
        source=f"{len(runs)} runs of {cases.name}; before: {fit.stack.source}",
    )
    write_files((TextFile(path=output.name, text=stack_toml(change)),), output.parent, force=True)
    return fit
