"""The command line: commands are put together here, and errors are told."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from parastrat.cli.check import check
from parastrat.cli.emit import emit
from parastrat.cli.estimate import estimate
from parastrat.cli.explain import explain
from parastrat.cli.flat import TextCommand, TextGroup, flat
from parastrat.cli.probe import probe
from parastrat.cli.profiles import profiles
from parastrat.cli.recommend import recommend
from parastrat.cli.run import run
from parastrat.cli.why_not import why_not
from parastrat.errors import ParastratError

_INTERRUPTED = 130
#: a command ends soon; looking for cycles while modules are loaded takes a tenth of its time
_OBJECTS_BEFORE_COLLECTION = 100_000
_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="parastrat",
    cls=TextGroup,
    no_args_is_help=True,
    # rich would be imported for help and errors
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def _print_version(value: bool) -> None:
    if value:
        from parastrat import __version__

        typer.echo(f"parastrat {__version__}")
        raise typer.Exit


@app.callback()
def _parastrat(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How should this model be trained in parallel on these machines?

    Exit codes: 0 done; 1 the answer is no (nothing fits, a bad plan, a failed run); 2 bad usage or input.
    """


app.command(cls=TextCommand)(flat(recommend))
app.command(cls=TextCommand)(flat(estimate))
app.command("why-not", cls=TextCommand)(flat(why_not))
app.command(cls=TextCommand)(flat(explain))
app.command(cls=TextCommand)(flat(profiles))
app.command(cls=TextCommand)(flat(probe))
app.command(cls=TextCommand)(flat(emit))
app.command(cls=TextCommand)(flat(check))
# what follows the script is the script's
app.command(
    cls=TextCommand,
    context_settings={**_HELP, "ignore_unknown_options": True, "allow_interspersed_args": False},
)(flat(run))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and leave with its exit code.

    Args:
        arguments: without the program's name; None: those of this process.
    """
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    _mend_streams()
    try:
        app(args=arguments, prog_name="parastrat")
    except ParastratError as error:
        _tell(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        # the process takes all that is left with it; the interpreter's last collection would cost 40 ms
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
