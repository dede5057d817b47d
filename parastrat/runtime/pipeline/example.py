"""The micro-batch along which a forward is followed before it is cut: as it was given, or guessed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from parastrat.errors import ModelError, ValuesError, WrapError
from parastrat.runtime.pipeline.following import Whole, followed
from parastrat.runtime.pipeline.setting import Setting
from parastrat.runtime.tracing.example_inputs import (
    ExampleInputs,
    example_inputs,
    made,
    resized,
    shapes_alone,
)

#: samples of the example that is traced
_SAMPLES = 2
#: sequence lengths that are tried where nobody gives an example
_GUESSED_LENGTHS = (16, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What is known of a micro-batch. Where a forward is cut hangs on its length, as FLOPs do."""

    #: as the forward takes it; None: guessed
    inputs: Any = None
    #: tokens of a sample; None: guessed
    sequence_length: int | None = None


@contextmanager
def traced(module: nn.Module, example: Example, setting: Setting) -> Iterator[tuple[Any, Whole]]:
    """Yield a micro-batch and what the forward does with it.

    Raises:
        WrapError: if the forward cannot be traced with what was given or guessed.
    """
    try:
        inputs = example_inputs(module, None if example.inputs is None else resized(example.inputs))
    except ModelError as error:
        raise _untraced(error) from error
    batches = [made(inputs.make, _SAMPLES, length) for length in _lengths(example, inputs)]
    shapes = [shapes_alone(batch) for batch in batches]
    # values of an example may be no more than placeholders
    several = shapes if inputs.guessed else [*batches, *shapes]
    with ExitStack() as stack:
        yield _first(module, several, setting, stack)


def _first(module: nn.Module, batches: list[Any], setting: Setting, stack: ExitStack) -> tuple[Any, Whole]:
    """Return the first micro-batch that the forward takes; what is followed ends with ``stack``."""
    for batch in batches[:-1]:
        try:
            return batch, stack.enter_context(followed(module, batch, setting))
        except ModelError:
            continue  # a bad guess; the last one's failure is told
    try:
        return batches[-1], stack.enter_context(followed(module, batches[-1], setting))
    except ModelError as error:
        raise _untraced(error) from error


def _lengths(example: Example, inputs: ExampleInputs) -> tuple[int | None, ...]:
    if example.inputs is not None or not inputs.has_tokens:
        return (None,)
    known = example.sequence_length
    return _GUESSED_LENGTHS if known is None else (known, *_GUESSED_LENGTHS)


def _untraced(error: ModelError) -> WrapError:
    hint = "pass sample_inputs= to auto_parallelize: one micro-batch as the forward takes it"
    if isinstance(error, ValuesError):
        hint = "let shapes alone decide what runs, or plan without pp: parastrat recommend --pp 1"
    return WrapError(
        f"a pipeline is cut along the forward, which cannot be followed: {error.message}", hint=hint
    )
