"""Any module as a model source: built on the meta device, run once on fake tensors, read as blocks.

Shapes, kernels and what autograd keeps come from the module itself; nothing needs memory or an
accelerator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from parastrat.errors import ModelError
from parastrat.model import Block, Family, ModelSpec, OperatorKind, TrainingDefaults
from parastrat.runtime.blocks import (
    buffer_bytes,
    has_routed_parts,
    parameter_count,
    repeated_blocks,
    sparse_table,
)
from parastrat.runtime.building import build_module, load_builder
from parastrat.runtime.precision import weight_dtype
from parastrat.runtime.silence import prints_aside
from parastrat.runtime.tensor_parallel.dropout import drops
from parastrat.runtime.tensor_parallel.layout import Layout
from parastrat.runtime.tensor_parallel.suggested import divisible, suggested_layout, vocabulary_rows
from parastrat.runtime.tensors.buffers import has_changing_buffers
from parastrat.runtime.tensors.leaves import as_tree
from parastrat.runtime.tracing.example_inputs import (
    ExampleInputs,
    example_inputs,
    made,
    resized,
)
from parastrat.runtime.tracing.samples import SAMPLES
from parastrat.runtime.tracing.steps import Subject, Way, traced_chain
from parastrat.stack import Kernels
from parastrat.workload import Precision

#: attributes by which modules and their configs say how many positions they have
_LENGTH_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "block_size",
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "context_length",
)
#: tokens with which a module's data flow is looked at
_LOOKED_AT = 8
#: convolutions with more than this share of the weights make a convolutional network
_MOSTLY = 0.5

_REPLICATED = "no column and row was found in its data flow: tp splits nothing of it"
_SUGGESTED = "what tp splits of it is what its data flow suggests; it is proven when it is wrapped"
_UNFUSED = "traced in eager mode: compiled or fused kernels keep and move less"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSource:
    """A module that is traced for every sequence length and number format that is asked for."""

    ref: str
    module: nn.Module
    inputs: ExampleInputs
    defaults: TrainingDefaults = field(default_factory=TrainingDefaults)
    #: find what tensor parallelism divides
    divides: bool = True
    _layouts: list[Layout] = field(default_factory=list, compare=False)
    _traced: dict[tuple[int | None, Precision, Kernels], ModelSpec] = field(
        default_factory=dict, compare=False
    )

    @property
    def family(self) -> Family:
        """Return CONVOLUTIONAL if most weights are, else MODULE: a trace knows no families."""
        within = sum(
            weight.numel()
            for layer in self.module.modules()
            if isinstance(layer, _ConvNd)
            for weight in layer.parameters()
        )
        mostly = within > _MOSTLY * parameter_count(self.module)
        return Family.CONVOLUTIONAL if mostly and not self.has_tokens else Family.MODULE

    @property
    def has_tokens(self) -> bool:
        return self.inputs.has_tokens

    @property
    def max_sequence_length(self) -> int | None:
        """Return what the module or its config says; None if neither does."""
        if not self.has_tokens:
            return None
        holders = (getattr(self.module, "config", None), self.module)
        found = (getattr(holder, name, None) for holder in holders for name in _LENGTH_NAMES)
        return next((length for length in found if isinstance(length, int) and length > 0), None)

    def at(self, sequence_length: int | None, precision: Precision, kernels: Kernels) -> ModelSpec:
        """Trace the module, once for each length and format.

        Raises:
            ModelError: the forward cannot run without values, raises, or depends on the batch size.
        """
        key = (sequence_length, precision, kernels)
        if key not in self._traced:
            with prints_aside():
                self._traced[key] = _traced(self, sequence_length, precision, kernels)
        return self._traced[key]

    @property
    def layout(self) -> Layout:
        """What tensor parallelism would divide, found once."""
        if not self._layouts:
            batch = made(self.inputs.make, SAMPLES[0], _LOOKED_AT if self.has_tokens else None)
            found = suggested_layout(self.module, batch) if self.divides else Layout(groups=())
            self._layouts.append(found)
        return self._layouts[0]


def traced_source(ref: str) -> TracedSource:
    """Return the model that ``package.module:callable`` or ``path.py:callable`` builds.

    Raises:
        ModelError: it cannot be imported or built, or what it takes is unknown.
    """
    with prints_aside():
        builder = load_builder(ref)
        module = build_module(builder)
        return TracedSource(
            ref=ref, module=module, inputs=example_inputs(module, builder.sample_inputs, estimated=True)
        )


def traced_module(
    module: nn.Module, *, ref: str, sample_inputs: Any = None, divides: bool = True
) -> TracedSource:
    """Return a built module as a source; it stays as it is.

    Args:
        module: on any device.
        ref: what to call it.
        sample_inputs: one micro-batch (tensor, tuple, dict), or a function
            ``(micro_batch_size, sequence_length)`` that makes one.
        divides: find what tensor parallelism divides, which takes a second or two.

    Raises:
        ModelError: if what it takes is unknown.
    """
    given = sample_inputs
    if given is not None and not callable(given):
        given = resized(as_tree(given))
    return TracedSource(
        ref=ref, module=module, inputs=example_inputs(module, given, estimated=True), divides=divides
    )


def _traced(
    source: TracedSource, sequence_length: int | None, precision: Precision, kernels: Kernels
) -> ModelSpec:
    module, inputs = source.module, source.inputs
    _check_dense(module)
    _check_trained(module)
    subject = Subject(module=module, inputs=inputs, layout=source.layout)
    chain = traced_chain(subject, Way(sequence_length=sequence_length, precision=precision))
    parameters, repeated = parameter_count(module), repeated_blocks(module)
    config = getattr(module, "config", None)
    unfused = () if kernels.eager else (_UNFUSED,)
    return ModelSpec(
        ref=source.ref,
        name=type(module).__name__,
        family=source.family,
        blocks=chain.blocks,
        parameters=parameters,
        active_parameters=parameters,
        sequence_length=sequence_length,
        precision=precision,
        causal=chain.causal,
        layers=repeated.count,
        stacks=max(len(repeated.containers), 1),
        positions=None if chain.positions == sequence_length else chain.positions,
        hidden=getattr(config, "hidden_size", None),
        divisible=divisible(module, source.layout, chain.heads),
        vocab=vocabulary_rows(module, source.layout) or getattr(config, "vocab_size", None)
        if source.has_tokens
        else None,
        max_sequence_length=source.max_sequence_length,
        buffers=buffer_bytes(module) + chain.tables,
        changing_buffers=has_changing_buffers(module),
        routed=has_routed_parts(module),
        drops=drops(module),
        divides_sequences=_attends(chain.blocks),
        dispatched=True,
        source="traced on fake tensors",
        caveats=(
            _REPLICATED if not source.layout.groups else _SUGGESTED,
            *unfused,
            *_cast_caveats(module, precision),
            *inputs.caveats,
            *chain.caveats,
        ),
    )


def _attends(blocks: tuple[Block, ...]) -> bool:
    """Return whether a module attends by torch's kernel."""
    operators = (operator for block in blocks for operator in block.operators)
    return any(operator.kind is OperatorKind.ATTENTION for operator in operators)


def _check_dense(module: nn.Module) -> None:
    """Refuse gradients whose sizes hang on the ids of a batch.

    Raises:
        ModelError: naming the table that makes them.
    """
    table = sparse_table(module)
    if table is not None:
        raise ModelError(
            f"{table or 'the model'} makes sparse gradients: what they take hangs on a batch's ids",
            hint="build it with sparse=False to see what it needs so",
        )


def _check_trained(module: nn.Module) -> None:
    """Refuse a module of which nothing is trained.

    Raises:
        ModelError: it has no parameter with a gradient.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(
            f"{type(module).__name__} has no parameter that is trained",
            hint="plan the model that is trained; a frozen one takes a plan of the same model, trained",
        )


def _cast_caveats(module: nn.Module, precision: Precision) -> list[str]:
    """Return what is to be said of a module whose weights are of several formats."""
    formats = sorted(
        {
            str(weight.dtype).removeprefix("torch.")
            for weight in module.parameters()
            if weight.is_floating_point()
        }
    )
    if len(formats) < 2:
        return []
    own = str(weight_dtype(precision)).removeprefix("torch.")
    return [
        f"its weights are of several formats ({', '.join(formats)}): a plan brings all of them into {own}"
    ]
