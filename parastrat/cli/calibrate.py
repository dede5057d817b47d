"""``parastrat calibrate``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.hardware_file import HardwareOutput, check_target, ref_of, write_hardware
from parastrat.errors import UsageError
from parastrat.units import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parastrat.calibration import Wanted

On = Annotated[
    str,
    typer.Option("--on", metavar="auto|cpu", help="What is found here, or its processors alone."),
]
RanksPerNode = Annotated[
    int | None,
    typer.Option(
        min=1, max=MOST_RANKS, metavar="N", help="Processes on a CPU host [default: its NUMA nodes]."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def calibrate(
    output: HardwareOutput = None,
    on: On = "auto",
    ranks_per_node: RanksPerNode = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Measure products, memory and collectives here, and write a hardware file that plans can rest on.

    Takes about a minute. Every device of this host works at once, as in training; each thing is repeated
    until its median is known to 1 %, and what spread is left is shown.
    """
    from parastrat.calibration import calibrated, wanted, wanted_alone
    from parastrat.cli.facts import hardware_of
    from parastrat.cli.output import paper, show, show_json
    from parastrat.report.calibration import calibration_json, calibration_text
    from parastrat.runtime.measuring import measure

    if on not in ("auto", "cpu"):
        raise UsageError(
            f"--on {on} may be another machine", hint="only this one can be measured: auto or cpu"
        )
    if output is not None:
        check_target(output)
    hardware = hardware_of(on, ranks_per_node)
    several, of_one = wanted(hardware), wanted_alone(hardware)
    with _progress(len(several) + len(of_one)) as told:
        timings, machinery = measure(hardware, several, told)
        alone = measure(replace(hardware, devices_per_node=1), of_one, told)[0] if of_one else ()
        found = calibrated(hardware, timings, machinery, alone)
    if output is not None:
        write_hardware(found.hardware, output)
    if as_json:
        show_json(calibration_json(found))
        return
    if output is None:
        commands = ("parastrat calibrate -o host.toml, to plan with these figures",)
    else:
        commands = (f"parastrat recommend MODEL --on {quote(ref_of(output))}",)
    show(calibration_text(found, commands, paper()))


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[Wanted], None]]:
    """Show how far it is on a terminal; yield what counts a step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=steps)
        yield lambda done: bar.update(task, advance=1, description=f"measured {done.operation}")
