"""``parastrat probe``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parastrat.cli.hardware_file import HardwareOutput, ref_of, write_hardware
from parastrat.errors import ProbeError, ProfileError, UsageError

if TYPE_CHECKING:
    from parastrat.hardware import Hardware
    from parastrat.machine import Machine
    from parastrat.report.host import HostReport

SCHEMA = "parastrat.probe/1"

Root = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Read a recorded host (sys/, proc/, nvml.json) instead of this one.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def probe(output: HardwareOutput = None, root: Root = None, *, as_json: AsJson = False) -> None:
    """Say what this machine has: accelerators, network, limits, and what is unknown."""
    from parastrat.cli.output import paper, show, show_json
    from parastrat.probe import read_machine

    if root is not None and not root.is_dir():
        raise UsageError(f"--root {root} is no folder", hint="name the folder that has sys/ and proc/")
    machine = read_machine(root)
    hardware, refusal = _hardware(machine)
    if output is not None:
        if hardware is None:
            raise refusal or ProbeError("this host makes no hardware", hint="name it with --on")
        write_hardware(hardware, output)
    if as_json:
        show_json(_table(machine, hardware, refusal))
    else:
        from parastrat.report.host import host_text

        show(host_text(_report(machine, hardware, refusal, output=output, root=root), paper()))


def _hardware(machine: Machine) -> tuple[Hardware | None, ProbeError | ProfileError | None]:
    """Return the hardware that a host is, or why it is none."""
    from parastrat.probe import hardware_of

    try:
        return hardware_of(machine), None
    except (ProbeError, ProfileError) as error:
        return None, error


def _table(
    machine: Machine, hardware: Hardware | None, refusal: ProbeError | ProfileError | None
) -> dict[str, Any]:
    from parastrat.probe.summary import summary
    from parastrat.records import plain

    described = None
    if hardware is not None:
        fields = plain(hardware)
        described = {"ref": fields.pop("name"), **fields}
    return {
        "schema": SCHEMA,
        "summary": summary(machine, hardware),
        "hardware": described,
        "no_hardware": None if refusal is None else {"message": refusal.message, "hint": refusal.hint},
        "facts": plain(machine),
    }


def _report(
    machine: Machine,
    hardware: Hardware | None,
    refusal: ProbeError | ProfileError | None,
    *,
    output: Path | None,
    root: Path | None,
) -> HostReport:
    """Return what the text tells, with the commands that go on from here."""
    from parastrat.probe.summary import between_nodes, plugin_of
    from parastrat.report.host import HostReport

    commands: tuple[str, ...]
    if hardware is None:
        commands = ("parastrat profiles nodes", "parastrat recommend MODEL --on NAME:N")
    elif output is not None:
        commands = (f"parastrat recommend MODEL --on {quote(ref_of(output))}:N",)
    elif root is not None:
        commands = (
            f"parastrat probe --root {quote(str(root))} -o host.toml",
            "parastrat recommend MODEL --on host.toml:N",
        )
    else:
        commands = ("parastrat recommend MODEL", "parastrat probe -o host.toml")
    return HostReport(
        machine=machine,
        decision=between_nodes(machine, hardware),
        plugin=plugin_of(machine),
        fabric=machine.fabric or (hardware.scale_up_kind if hardware else None),
        no_hardware=None if refusal is None else f"{refusal.message}; {refusal.hint}",
        next_commands=commands,
    )
