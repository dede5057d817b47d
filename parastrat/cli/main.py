"""The command line: commands are put together here, and errors are told."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from parastrat.cli.flat import TextCommand, TextGroup, flat
from parastrat.errors import ParastratError

_INTERRUPTED = 130
#: a command ends soon; looking for cycles while modules are loaded takes a tenth of its time
_OBJECTS_BEFORE_COLLECTION = 100_000
_HELP = {"help_option_names": ["-h", "--help"]}

#: the commands in the order of their help, each the function of this name in the module of this name;
#: with settings of its own where what follows the script is the script's
_COMMANDS: dict[str, dict[str, bool]] = {
    "recommend": {},
    "estimate": {},
    "why-not": {},
    "explain": {},
    "profiles": {},
    "probe": {},
    "emit": {},
    "check": {},
    "verify": {},
    "diff": {},
    "validate": {},
    "calibrate": {},
    "run": {"ignore_unknown_options": True, "allow_interspersed_args": False},
    "tune": {"ignore_unknown_options": True, "allow_interspersed_args": False},
}


def _print_version(value: bool) -> None:
    if value:
        from parastrat import __version__

        typer.echo(f"parastrat {__version__}")
        raise typer.Exit


def _parastrat(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How should this model be trained in parallel on these machines?

    Exit codes: 0 done; 1 the answer is no (nothing fits, a bad plan, a failed run); 2 bad usage or input.
    """


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Return the command that is named first, alone; all of them where none is.

    To put the others together would take a tenth of the time of an answer.
    """
    app = typer.Typer(
        name="parastrat",
        cls=TextGroup,
        no_args_is_help=True,
        # rich would be imported for help and errors
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP,
    )
    app.callback()(_parastrat)
    named = [name for name in arguments[:1] if name in _COMMANDS]
    for name in named or _COMMANDS:
        function = name.replace("-", "_")
        command = getattr(import_module(f"parastrat.cli.{function}"), function)
        app.command(name, cls=TextCommand, context_settings=_HELP | _COMMANDS[name])(flat(command))
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its exit code.

    Args:
        arguments: without the program's name; None: those of this process.
    """
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    _mend_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] not in (["run"], ["tune"], ["calibrate"]):  # what those start would inherit it
        # the sums here are small, and numpy's threads spin where there is nothing to do
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        _app(arguments)(args=arguments, prog_name="parastrat")
    except ParastratError as error:
        _tell(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        # the process takes all that is left with it; the interpreter's last collection would cost 40 ms.
        # Triton's bindings, which torch brings, would print what is left as leaks
        if sys.modules.get("torch") is None:
            gc.freeze()
    raise AssertionError("typer leaves by SystemExit")


def _mend_streams() -> None:
    """Let nothing that is printed fail for where it is printed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: >&-
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - to the end
        # a name that the terminal cannot show is shown in escapes
        getattr(getattr(sys, name), "reconfigure", lambda **_: None)(errors="backslashreplace")


def _tell(error: ParastratError) -> None:
    sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
