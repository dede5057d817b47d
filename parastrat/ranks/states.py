"""What a rank keeps from step to step: parameters, gradients and optimizer states, exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from parastrat.columns import code_of
from parastrat.elementwise import larger, some, taken
from parastrat.hardware import DeviceType
from parastrat.plan import Offload, Shard
from parastrat.ranks.division import divided, division, local, sharded_total
from parastrat.ranks.load import NO_PARAMETERS
from parastrat.remembered import remembered
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.model import ModelSpec
    from parastrat.ranks.division import Division
    from parastrat.ranks.load import RankLoad
    from parastrat.ranks.matrices import Matrices
    from parastrat.stack import Stack
    from parastrat.units import Numbers


_UNSHARDED, _SHARDED = code_of(Shard.NONE), code_of(Shard.PARAMETERS)
_HERE, _AWAY = code_of(Offload.NONE), code_of(Offload.PARAMETERS)

#: whose steps take the root of a state, as those of AdamW beside Muon do
_WITH_ROOTS = (Optimizer.ADAMW, Optimizer.MUON)

#: bytes of one fp32 element, in which torch reduces gradients and takes optimizer steps
_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementBytes:
    """Bytes of one parameter's element in each place, under one stack and precision."""

    #: the weights that the optimizer updates
    parameter: float
    gradient: float
    #: states and fp32 masters
    optimizer: float
    #: of these what a matrix that Muon updates has none of
    spared: float
    #: as matrix multiplies read it
    compute: float
    #: as gradients are reduced
    reduce: float
    #: temporaries of a foreach optimizer step
    step: float
    #: of the copy of a weight's gradient that is added to those of micro-batches before
    copied: float
    #: short-format copies that autocast keeps until backward, where the weights are not gathered anyway
    cast: float


@remembered
def element_bytes(facts: Facts) -> ElementBytes:
    """Return the bytes of an element for a job.

    AdamW keeps two states in the weights' format; 8-bit AdamW two bytes and one fp32 scale per 256
    elements each (bitsandbytes' block size); Adafactor one row and one column of a square matrix of the
    model's width (arXiv:1804.04235); Muon one momentum of matrices, beside AdamW for the rest.
    """
    precision, stack = facts.workload.precision, facts.stack
    mixed = precision not in (Precision.FP32, Precision.BF16)
    parameter = stack.mixed_parameter_bytes if mixed else precision.parameter_bytes
    state = _FP32 if mixed else parameter
    states = {
        Optimizer.ADAMW: 2 * state,
        Optimizer.SGD: 0,
        Optimizer.SGD_MOMENTUM: state,
        Optimizer.ADAFACTOR: 2 * _FP32 / (facts.model.hidden or 1024),
        Optimizer.ADAMW_8BIT: 2 * (1 + _FP32 / 256),
        Optimizer.MUON: 2 * state,
    }[facts.workload.optimizer]
    return ElementBytes(
        parameter=parameter,
        gradient=_gradient_bytes(precision, stack) if mixed else parameter,
        optimizer=states + (stack.master_weight_bytes if mixed else 0),
        spared=state if facts.workload.optimizer is Optimizer.MUON else 0,
        compute=precision.compute_bytes,
        # FSDP2's, whatever the weights' (``runtime.precision.policy``, torchtitan's mixed_precision_reduce)
        reduce=parameter if stack.casts_gradients_aside and not mixed else _FP32,
        # the root of one of its states, in that one's format (torch/optim/adam.py, _multi_tensor_adam)
        step=states / 2 if facts.workload.optimizer in _WITH_ROOTS and not stack.steps_in_one_kernel else 0,
        copied=_under(precision, stack.fp16_gradient_bytes and 0, _FP32) * mixed * stack.copies_gradients,
        cast=precision.compute_bytes if mixed and parameter == _FP32 else 0,
    )


def _gradient_bytes(precision: Precision, stack: Stack) -> int:
    return _under(precision, stack.fp16_gradient_bytes, stack.mixed_gradient_bytes)


def _under(precision: Precision, own: int | None, usual: int) -> int:
    """Return a stack's own figure of fp16-mixed, where it has one and that is the precision."""
    return usual if own is None or precision is not Precision.FP16_MIXED else own


@dataclass(slots=True)
class States:
    """The bytes that stay on a rank from step to step; what is offloaded is on the host."""

    parameters: Numbers
    gradients: Numbers
    optimizer: Numbers
    #: beside these the temporary copy that a foreach optimizer makes while it steps
    stepping: Numbers

    @property
    def kept(self) -> Numbers:
        return self.parameters + self.gradients + self.optimizer

    def at(self, places: Any) -> States:
        """Return those at some places."""
        every = self.parameters, self.gradients, self.optimizer, self.stepping
        return States(*(taken(column, places) for column in every))


class OfElements(NamedTuple):
    """Bytes on the device of an element of each part of ``States``; what is offloaded is on the host."""

    parameter: Numbers
    gradient: Numbers
    optimizer: Numbers
    stepping: Numbers
    spared: Numbers


def of_elements(offload: Numbers, element: ElementBytes) -> OfElements:
    """Return the bytes of elements under plans' choices of offload."""
    here, steps_here = offload != _AWAY, offload == _HERE
    return OfElements(
        here * element.parameter,
        here * element.gradient,
        steps_here * element.optimizer,
        steps_here * element.step,
        steps_here * element.spared if element.spared else 0,
    )


def state_bytes(
    load: RankLoad, d: Division, shard: Numbers, of: OfElements, matrices: Matrices | None
) -> States:
    """Return the states of a rank under plans' choices of shards; of what Muon updates, where it does."""
    return states_of(divided(load.trainable, d), load, d, shard, of, matrices)


def states_of(
    own: tuple[Numbers, Numbers],
    load: RankLoad,
    d: Division,
    shard: Numbers,
    of: OfElements,
    matrices: Matrices | None,
) -> States:
    """Return what ``state_bytes`` does of the dense and expert parameters that a rank trains."""
    parameter, gradient, state, step, spared = of
    frozen = load.frozen
    sharded = shard >= _SHARDED
    parameters = gradients = optimizer = sharded_total(own, d, sharded)
    if sharded is not True and some((shard > _UNSHARDED) & (shard < _SHARDED)):
        # what is searched shards all or nothing
        gradients, optimizer = (
            sharded_total(own, d, shard >= code_of(least)) for least in (Shard.GRADIENTS, Shard.OPTIMIZER)
        )
    if frozen is not NO_PARAMETERS:
        parameters = parameters + sharded_total(divided(frozen, d), d, sharded)
    states, stepping = state * optimizer, step * optimizer
    if matrices is not None:
        divides = shard >= code_of(Shard.OPTIMIZER)
        updated = sharded_total(matrices.held(load, d), d, divides)
        states = states - spared * updated
        stepping = larger(step * (optimizer - updated), (spared > 0) * matrices.temporaries(d, sharded))
    return States(parameter * parameters, gradient * gradients, states, stepping)


def updated_parameters(load: RankLoad, c: Columns) -> Numbers:
    """Return the parameters that one rank's optimizer updates."""
    return sharded_total(local(load.trainable, c), division(c), c.shard >= code_of(Shard.OPTIMIZER))


def context_bytes(facts: Facts) -> int:
    """Return what an accelerator's context takes; a CPU process has none, its libraries are not counted."""
    if facts.hardware.device.type is DeviceType.CPU:
        return 0
    stack = facts.stack
    return _under(facts.workload.precision, stack.fp16_context_bytes, stack.context_bytes)


def least_bytes(facts: Facts, offload: Offload) -> float:
    """Return what no plan of a job falls below on its worst rank: everything spread over all devices.

    What a rank holds between steps is at least an even share of the model, because meshes split each
    parameter over at most as many ranks as there are; and the worst rank holds the mean or more.
    """
    element, (trainable, frozen) = element_bytes(facts), _counted_once(facts.model)
    here = element.parameter * (trainable + frozen) + element.gradient * trainable
    # Muon's roots are those of what is no matrix
    alone = 0 if element.spared else element.step
    states = {
        Offload.NONE: here + (element.optimizer - element.spared + alone) * trainable,
        Offload.OPTIMIZER: here,
        Offload.PARAMETERS: 0,
    }[offload]
    return states / facts.hardware.world_size + facts.model.buffers + context_bytes(facts)


def may_fit(facts: Facts, offload: Offload) -> bool:
    """Return whether an even share of the states fits, which does not hang on sequences."""
    return least_bytes(facts, offload) <= facts.hardware.device.usable_memory_bytes


@remembered
def _counted_once(model: ModelSpec) -> tuple[int, int]:
    """Return a model's trainable and frozen parameters, tied ones once."""
    groups = [(group, block.repeat) for block in model.blocks for group in block.parameters]
    tied = {group.tie_group: group for group, _ in groups if group.tie_group is not None}
    once = [(group, 1) for group in tied.values()]
    once += [(group, count) for group, count in groups if group.tie_group is None]
    trainable = sum(group.trainable * count for group, count in once)
    return trainable, sum(group.frozen * count for group, count in once)
