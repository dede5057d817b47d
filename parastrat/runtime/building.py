"""A model from the place that the user named: imported, then built on the meta device.

Nothing here is imported unless the user wrote its name. What user code raises becomes one message.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from traceback import walk_stack
from types import FrameType, ModuleType, TracebackType
from typing import Any

import torch
from torch import nn

from parastrat.errors import ModelError
from parastrat.runtime.first_values.replay import Record, Recorder
from parastrat.runtime.first_values.whole_numbers import remember
from parastrat.runtime.tensors.slots import check_shapes

#: how a model is named
_FORMS = "a model is written package.module:callable or path.py:callable"
#: prefix of the module name of a file, so that ``types.py`` does not hide the library's
_FILE_MODULE = "_parastrat_model_"
#: function beside the builder that makes a micro-batch
SAMPLE_INPUTS = "sample_inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A callable that makes a model, and what its file says of the model's inputs."""

    #: MODEL as the user typed it
    ref: str
    build: Callable[[], Any]
    #: ``sample_inputs(micro_batch_size, sequence_length)`` of the builder's file; None where it has none
    sample_inputs: Callable[[int, int | None], Any] | None = None


def load_builder(ref: str) -> Builder:
    """Import the callable that ``ref`` names.

    Args:
        ref: ``package.module:callable`` or ``path.py:callable``; a path is relative to the working
            directory, a callable may be dotted (``Model.tiny``).

    Raises:
        ModelError: no such file, module or attribute, not a callable, or the import fails.
    """
    place, separator, attribute = ref.rpartition(":")
    if not separator or not place or not attribute:
        raise ModelError(f"{ref!r} names no callable", hint=_FORMS)
    if place.endswith(".py") or "/" in place:
        module = _imported_file(ref, Path(place))
    else:
        module = _imported_module(ref, place)
    target = _attribute(module, place, attribute)
    if isinstance(target, nn.Module):
        raise ModelError(
            f"{ref} is a model already, built when its file was imported",
            hint=f"name a function that builds it: def build(): return {type(target).__name__}(...)",
        )
    if not callable(target):
        raise ModelError(
            f"{ref} is no callable but of type {type(target).__name__}",
            hint="name a function or class that takes no arguments and makes an nn.Module",
        )
    sample_inputs = getattr(module, SAMPLE_INPUTS, None)
    return Builder(ref=ref, build=target, sample_inputs=sample_inputs if callable(sample_inputs) else None)


def build_module(builder: Builder) -> nn.Module:
    """Return the module, built on the meta device.

    Raises:
        ModelError: the builder raises, or returns something else.
    """
    with _reported(f"{builder.ref} raised", "call it in Python and mend what it raises"), _meta() as record:
        module = builder.build()
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{builder.ref} returned no nn.Module but {type(module).__name__}",
            hint="let it return the model",
        )
    check_shapes(module)
    remember(module, record)
    return module


def class_name(module: nn.Module) -> str:
    """Return a module's class with its package, such as ``LlamaForCausalLM of transformers``."""
    name, package = type(module).__name__, type(module).__module__.partition(".")[0]
    return name if package.startswith(_FILE_MODULE) else f"{name} of {package}"


@contextmanager
def _meta() -> Iterator[Record]:
    """Build without memory; what needs values says how to do without."""
    try:
        # which knows the values that a constructor states
        with torch.device("meta"), Recorder() as recorder:
            yield recorder.record
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error).lower():
            raise
        raise ModelError(
            f"the model cannot be built without values: {_first_line(error)}",
            hint="keep .item(), .numpy(), .tolist() and loading of weights out of the constructor",
        ) from error


def _imported_file(ref: str, path: Path) -> ModuleType:
    if not path.is_file():
        here = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ModelError(f"there is no file {path}{here}", hint=_FORMS)
    name = _FILE_MODULE + path.stem
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} is not a Python file", hint=_FORMS)
    module = importlib.util.module_from_spec(spec)
    # what lies beside a script can be imported from it, as when Python runs it
    _on_path(path.resolve().parent)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        with _reported(f"importing {path} raised", _guard_hint(ref)):
            spec.loader.exec_module(module)
    except ModelError:
        del sys.modules[name]
        raise
    return module


def _imported_module(ref: str, name: str) -> ModuleType:
    _on_path(Path.cwd())
    try:
        with _reported(f"importing {name} raised", _guard_hint(ref)):
            return importlib.import_module(name)
    except ModelError as error:
        cause = error.__cause__
        if (
            isinstance(cause, ModuleNotFoundError)
            and cause.name
            and f"{name}.".startswith(f"{cause.name}.")
        ):
            raise ModelError(
                f"there is no module {cause.name}",
                hint=f"{_FORMS}; modules are looked for in {Path.cwd()} and in this Python's packages",
            ) from cause
        raise


def _on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _guard_hint(ref: str) -> str:
    return (
        f"python -c 'import ...' shows it whole; {ref} is imported to build the model, so training belongs "
        'under if __name__ == "__main__":'
    )


def _attribute(module: ModuleType, place: str, path: str) -> Any:
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        own = [name for name, value in vars(module).items() if _is_builder(module, name, value)]
        raise ModelError(
            f"{place} has no {path}",
            hint=f"it defines {', '.join(own)}" if own else "define a function there that builds the model",
        ) from error


def _is_builder(module: ModuleType, name: str, value: object) -> bool:
    return (
        callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    )


@contextmanager
def _reported(what: str, hint: str) -> Iterator[None]:
    """Turn whatever user code raises into one message that quotes it."""
    try:
        yield
    except ModelError:
        raise
    except SyntaxError as error:
        raise ModelError(
            f"{error.filename}, line {error.lineno}: {error.msg}", hint="mend the syntax error"
        ) from error
    except SystemExit as error:
        raise ModelError(f"{what} SystemExit({error.code})", hint=hint) from error
    except Exception as error:  # user code may raise anything; the message quotes it
        raise ModelError(f"{what} {described(error)}", hint=hint) from error


def described(error: BaseException) -> str:
    """Return an exception as one line: type, message, and the place in the user's code."""
    place = _own_place(error.__traceback__)
    message = _first_line(error)
    return f"{type(error).__name__}{f': {message}' if message else ''}{f' ({place})' if place else ''}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


def _own_place(trace: TracebackType | None) -> str:
    """Return the last line outside of parastrat, torch and the standard library's import machinery."""
    place = ""
    while trace is not None:
        if _is_users(trace.tb_frame):
            place = f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def place_now(runner: Path) -> str:
    """Return the line of the user's code that runs; nothing where torch runs backward alone.

    Args:
        runner: the file that calls the user's code: what called that is none of it.
    """
    for frame, _ in walk_stack(None):
        if frame.f_code.co_filename == str(runner):
            break
        if _is_users(frame):
            return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
    return ""


def _is_users(frame: FrameType) -> bool:
    file, ours, libraries = frame.f_code.co_filename, Path(__file__).parents[1], Path(torch.__file__).parent
    return not file.startswith(("<", str(ours), str(libraries))) and "contextlib" not in file
