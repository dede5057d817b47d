"""A module's steps as they are traced: in one format, under autocast, with answers to what it asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from parastrat.errors import ModelError, ValuesError
from parastrat.runtime.first_values.whole_numbers import whole_numbers
from parastrat.runtime.precision import COMPUTE, weight_dtype
from parastrat.runtime.tensor_parallel.layout import Layout
from parastrat.runtime.tracing.answers import Answers
from parastrat.runtime.tracing.casting import Casting, casting_of
from parastrat.runtime.tracing.chain import Chain, chain_of
from parastrat.runtime.tracing.division import Division
from parastrat.runtime.tracing.example_inputs import ExampleInputs, has_targets, made, shapes_alone
from parastrat.runtime.tracing.samples import SAMPLES
from parastrat.runtime.tracing.tracker import Tracker
from parastrat.runtime.tracing.watched import Setting, watched_steps
from parastrat.workload import Precision

_CASTS = "plans without FSDP2 are traced under the autocast of CPUs, which keeps fewer norms in fp32"
_GIVEN = (
    "what the forward makes hangs on values of its whole numbers, such as lengths: taken to be those of "
    "the sample inputs"
)
_AUTOCAST = (
    "its forward mixes number formats, which only autocast lets meet, not FSDP2's policy: traced under the "
    "autocast of CPUs, which keeps fewer norms and softmaxes in fp32"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is traced."""

    module: nn.Module
    inputs: ExampleInputs
    #: what tensor parallelism would divide
    layout: Layout
    #: values of its buffers, by name, where the forward has asked for values
    held: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a module is traced."""

    sequence_length: int | None
    precision: Precision
    autocast: bool = False


def traced_chain(subject: Subject, way: Way) -> Chain:
    """Return the chain in a format; under autocast, where only that lets the forward's own formats meet.

    Raises:
        ModelError: the forward cannot run, by its first reason.
    """
    try:
        return _valued_chain(subject, way)
    except ValuesError:
        raise
    except ModelError as refused:
        if way.precision not in COMPUTE:
            raise
        try:
            chain = _valued_chain(subject, replace(way, autocast=True))
        except ModelError:
            raise refused from None
        return replace(chain, caveats=(*chain.caveats, _AUTOCAST))


def _valued_chain(subject: Subject, way: Way) -> Chain:
    """Return the chain; where the forward asks for values, with those of buffers, and with answers."""
    try:
        return _chain(subject, way, None)
    except ValuesError as refused:
        reason = refused
    held = whole_numbers(subject.module)
    subject = replace(subject, held=held)
    try:
        if held:
            return _chain(subject, way, None)
    except ValuesError as refused:
        reason = refused
    return _answered_chain(subject, way, reason)


def _chain(subject: Subject, way: Way, answers: Answers | None) -> Chain:
    small, large = _steps(subject, way, answers)
    casting = None
    if way.precision in COMPUTE and not way.autocast:
        casting = _casting(subject, way, answers, [segment.block for segment in small.segments])
    chain = chain_of(subject.module, small, large, weight_dtype(way.precision), casting)
    said = ((_CASTS,) if casting else ()) + (() if answers is None else (answers.sentence,))
    if small.known.asked and not subject.inputs.guessed:
        said += (_GIVEN,)
    return replace(chain, caveats=(*chain.caveats, *said))


def _steps(subject: Subject, way: Way, answers: Answers | None) -> list[Tracker]:
    batches = [made(subject.inputs.make, samples, way.sequence_length) for samples in SAMPLES]
    if subject.inputs.guessed:
        batches = [shapes_alone(batch) for batch in batches]
    division = Division.of(subject.layout, subject.module, logits=not has_targets(batches[0]))
    setting = Setting(precision=way.precision, autocast=way.autocast)
    return watched_steps(subject.module, batches, setting, answers, division, subject.held)


def _casting(subject: Subject, way: Way, answers: Answers | None, visited: list[str]) -> Casting | None:
    """Return the steps under autocast; None where it cannot run so, or visits other blocks."""
    try:
        steps = _steps(subject, replace(way, autocast=True), answers)
    except ModelError:  # as FSDP2 runs it, it does
        return None
    if any([segment.block for segment in each.segments] != visited for each in steps):
        return None
    return casting_of(*steps)


def _answered_chain(subject: Subject, way: Way, refused: ValuesError) -> Chain:
    """Return the chain of the answers to questions about values under which it holds most.

    Raises:
        ValuesError: ``refused``, where the forward asks for more than yes, no or a selection.
    """
    found = []
    for truth in (True, False):
        try:
            found.append(_chain(subject, way, Answers(truth=truth)))
        except ModelError:  # this is not how the forward goes
            continue
    if not found:
        raise refused
    return max(found, key=_held)


def _held(chain: Chain) -> float:
    kept = sum(block.activations.none.total * block.repeat for block in chain.blocks)
    return kept + max(block.working.total for block in chain.blocks)
