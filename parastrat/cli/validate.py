"""``parastrat validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Cases = Annotated[
    Path,
    typer.Argument(metavar="CASES.csv", help="One measured run a line; the first line names the columns."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def validate(cases: Cases, *, as_json: AsJson = False) -> None:
    """Predict measured runs, and show how far off the predictions are.

    Columns: id, model, gpus, stack, hardware or gpu, precision, the mesh (tp, pp, cp, ep, dp), fsdp,
    act_ckpt, micro_batch, global_batch, seq_len, and what was measured: step_time_s, tokens_per_s_per_gpu
    or samples_per_s; peak_mem_gib with mem_metric (reserved, allocated, nvidia-smi). A blank is unknown.
    """
    from parastrat.cli.output import paper, show, show_json
    from parastrat.measured import compared, read_rows
    from parastrat.report.validation import validation_json, validation_text

    comparison = compared(read_rows(cases))
    if as_json:
        show_json(validation_json(comparison))
    else:
        show(validation_text(comparison, paper()))
