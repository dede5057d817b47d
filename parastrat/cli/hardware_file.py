"""Hardware files that commands write, and how ``--on`` names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from parastrat.hardware import Hardware


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
    if path.is_file() and not _is_hardware(path):
        raise UsageError(f"{path} is there and is no hardware file", hint="name another file with -o")


def ref_of(path: Path) -> str:
    """Return a file as ``--on`` takes it: a path, not a name."""
    text = str(path)
    return text if "/" in text or text.endswith(".toml") else f"./{text}"


def _is_hardware(path: Path) -> bool:
    try:
        start = path.read_bytes()[:200]
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="name another file with -o"
        ) from error
    return not start.strip() or b"parastrat.hardware/" in start
