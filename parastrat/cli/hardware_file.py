"""Hardware files that commands write, and how ``--on`` names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from parastrat.hardware import Hardware

HardwareOutput = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write a hardware file, for --on FILE:N of N such hosts.",
        show_default=False,
    ),
]


def write_hardware(hardware: Hardware, path: Path) -> None:
    """Write a hardware file, whole or not at all; an older one is replaced, nothing else is.

    Raises:
        UsageError: something else is in the way, or nothing can be written there.
    """
    from parastrat.cli.files import write_files
    from parastrat.emit import TextFile
    from parastrat.profiles import hardware_toml

    check_target(path)
    write_files((TextFile(path=path.name, text=hardware_toml(hardware)),), path.parent, force=True)


def check_target(path: Path) -> None:
    """Refuse a file that is there and is no hardware file.

    Raises:
        UsageError: so it is, or it cannot be read.
    """
    from parastrat.cli.files import refuse_others

    refuse_others(path, "parastrat.hardware/", "hardware file")


def ref_of(path: Path) -> str:
    """Return a file as ``--on`` takes it: a path, not a name."""
    text = str(path)
    return text if "/" in text or text.endswith(".toml") else f"./{text}"
