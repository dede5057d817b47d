"""Flags in groups: what is trained on what, what is fixed beforehand, and where the answer goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from parastrat.cli.completion import hardware_words, model_words, stack_words
from parastrat.plan import Offload, PipelineSchedule, Recompute
from parastrat.units import MOST_CHUNKS, MOST_RANKS, MOST_SAMPLES, MOST_STAGES, MOST_TOKENS
from parastrat.workload import Optimizer, Precision

_Degree = typer.Option(min=1, max=MOST_RANKS, metavar="N", show_default=False)
_Model = typer.Argument(
    metavar="MODEL",
    help="A preset (llama-3.1-70b), an HF config.json or its folder, package.module:callable, "
    "path.py:callable, or hf:org/name.",
    show_default=False,
    autocompletion=model_words,
)


#: a plan file, and what is said in place of what it says
PlanFile = Annotated[Path, typer.Argument(metavar="plan.toml", show_default=False)]
OtherModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="MODEL", help="Where the plan file does not say it.", autocompletion=model_words
    ),
]
OtherHardware = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="HARDWARE",
        help="Where the plan file does not say it.",
        autocompletion=hardware_words,
    ),
]


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """What is trained, on what."""

    model: Annotated[str, _Model]
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="HARDWARE",
            help="auto (this machine), NAME:N (dgx-h100:8 is 8 nodes), DEVICExM:N (h100-sxm5x4:2), cpu:N, "
            "or a file from probe -o.",
            autocompletion=hardware_words,
        ),
    ] = "auto"
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_RANKS, metavar="N", help="Processes on a CPU host [default: its NUMA nodes]."
        ),
    ] = None
    seq_len: Annotated[
        int | None, typer.Option(min=1, max=MOST_TOKENS, metavar="N", help="Tokens of one sample.")
    ] = None
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_SAMPLES, metavar="N", help="Samples of one optimizer step, over all devices."
        ),
    ] = None
    precision: Annotated[Precision | None, typer.Option(help="Number format.")] = None
    optimizer: Annotated[
        Optimizer | None,
        typer.Option(
            help="Decides the size of its states and what its step takes: adamw with fused=True, muon with "
            "adamw for what is no matrix."
        ),
    ] = None
    loss_chunks: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_CHUNKS,
            metavar="N",
            help="Parts of a micro-batch's tokens whose logits the loss makes one after another.",
        ),
    ] = 1
    stack: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The software that runs it: torch, torch-compile, ..., or a file of validate -o.",
            autocompletion=stack_words,
        ),
    ] = "torch"


@dataclass(frozen=True, kw_only=True)
class FixedFlags:
    """What the user settles; the rest is searched."""

    pp: Annotated[int | None, _Degree] = None
    dp_replicate: Annotated[int | None, _Degree] = None
    dp_shard: Annotated[int | None, _Degree] = None
    cp: Annotated[int | None, _Degree] = None
    tp: Annotated[int | None, _Degree] = None
    ep: Annotated[int | None, _Degree] = None
    strategy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="single, ddp, fsdp2, hsdp, or with axes: fsdp2+tp, hsdp+tp+pp."),
    ] = None
    micro_batch: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_SAMPLES, metavar="N", help="Samples of one forward on one rank."),
    ] = None
    recompute: Annotated[
        Recompute | None, typer.Option(help="What backward computes again instead of keeping it.")
    ] = None
    schedule: Annotated[
        PipelineSchedule | None,
        typer.Option(help="The order in which a pipeline runs micro-batches."),
    ] = None
    virtual_stages: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_STAGES, metavar="N", help="Stages of a pipeline that one rank runs."),
    ] = None
    offload: Annotated[
        Offload, typer.Option(help="What stands in host memory instead of on devices.", show_default=False)
    ] = Offload.NONE


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Where the answer goes."""

    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the plan here.", show_default=False),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False
