"""What leaves the process: text or one JSON object on stdout, and the plan file."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from parastrat.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from parastrat.case import Case
    from parastrat.report.text import Paper
    from parastrat.timeline import Timeline

_NARROWEST = 60
_BLOCK = "\u2588"


def paper() -> Paper:
    """Return what the terminal behind stdout shows; 80 columns without colour when it is none.

    ``NO_COLOR`` (no-color.org) and ``TERM=dumb`` take the colour, ``COLUMNS`` sets the width.
    """
    from parastrat.report.text import Paper

    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Paper(
        width=max(_NARROWEST, shutil.get_terminal_size((80, 24)).columns if _sized() else 80),
        colour=sys.stdout.isatty() and not is_plain,
        blocks=_can_encode(_BLOCK),
    )


def _sized() -> bool:
    """Whether the width is somebody's: the terminal's, or of ``COLUMNS``."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def _can_encode(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def show(text: str) -> None:
    """Write text to stdout; a reader that has gone away (``| head``) is no failure.

    Raises:
        UsageError: nothing can be written there.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # else the interpreter tries to flush again when it ends, and complains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise UsageError(
                f"cannot write the answer: {error.strerror}", hint="free some space, or write elsewhere"
            ) from error


def show_json(table: dict[str, Any]) -> None:
    """Write one JSON object to stdout."""
    show(json.dumps(table, indent=2, allow_nan=False) + "\n")


def tell(text: str) -> None:
    """Write a remark to stderr, which never mixes with an answer."""
    sys.stderr.write(text + "\n")


def write_plan(case: Case, path: Path) -> None:
    """Write a plan file, whole or not at all; an older plan file is replaced, nothing else is.

    Raises:
        UsageError: something else is in the way, or nothing can be written there.
    """
    from parastrat.cli.files import refuse_others, write_files
    from parastrat.emit import TextFile, plan_toml
    from parastrat.parse import relative_ref

    text = plan_toml(case, stored_ref=relative_ref(case.model.ref, path))
    refuse_others(path, "parastrat.plan/", "plan file")
    write_files((TextFile(path=path.name, text=text),), path.parent, force=True)


def write_trace(timeline: Timeline | None, path: Path) -> None:
    """Write a step as trace events, whole or not at all; older ones are replaced, nothing else is.

    Raises:
        UsageError: there is none, something else is in the way, or nothing can be written there.
    """
    from parastrat.cli.files import refuse_others, write_files
    from parastrat.emit import TextFile
    from parastrat.report.trace import trace_events

    if timeline is None:
        raise UsageError(
            "there is no step to trace: the plan breaks a rule or does not fit, or is for one device",
            hint="leave --trace out, or choose a plan over several devices that can run",
        )
    refuse_others(path, '"traceEvents"', "trace of a step", "--trace")
    text = json.dumps(trace_events(timeline), allow_nan=False) + "\n"
    write_files((TextFile(path=path.name, text=text),), path.parent, force=True, flag="--trace")
