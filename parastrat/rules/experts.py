"""PS8xx: experts and context parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.finding import Hit, Severity
from parastrat.rules.divisors import either, nearest_divisors
from parastrat.rules.rule import plan_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron/training"
_CONTEXT = "https://docs.pytorch.org/tutorials/unstable/context_parallel.html"


@plan_rule(
    "PS801",
    Severity.ERROR,
    source=""
    "https://github.com/pytorch/torchtitan/blob/b5bcd76/torchtitan/distributed/parallel_dims.py#L190",
    covers=("PIT108",),
)
def expert_groups_do_not_tile(p: Columns) -> Mask:
    """The degree ep must divide dp_shard x cp x tp.

    Expert parallelism adds no ranks: it regroups those that hold one copy of the dense layers, so that each
    group holds the experts once.
    """
    # of a model without experts PS805 says that no other degree will do
    return ((p.dp_shard * p.cp * p.tp) % p.ep != 0) & (p.without_experts == 0)


@expert_groups_do_not_tile.message
def _(case: Case) -> Hit:
    mesh = case.plan.mesh
    inner = mesh.dp_shard * mesh.cp * mesh.tp
    return Hit(
        message=f"ep={mesh.ep} does not divide dp_shard {mesh.dp_shard} x cp {mesh.cp} x tp {mesh.tp} "
        f"= {inner}",
        fix=f"use ep {either(nearest_divisors(mesh.ep, inner, case.model.experts or 1))}",
    )


@plan_rule("PS802", Severity.ERROR, source=f"{_MEGATRON}/arguments.py#L1657", covers=("PIT212",))
def experts_do_not_divide(p: Columns) -> Mask:
    """The experts must divide evenly over ep.

    Every rank of an expert group holds equally many, so that the exchange of tokens has one shape.
    """
    return p.experts % p.ep != 0


@experts_do_not_divide.message
def _(case: Case) -> Hit:
    ep, experts = case.plan.mesh.ep, case.model.experts or 1
    mesh = case.plan.mesh
    choices = nearest_divisors(ep, experts, mesh.dp_shard * mesh.cp * mesh.tp)
    return Hit(
        message=f"{experts} experts cannot be split evenly over ep={ep}",
        fix=f"use ep {either(choices)}",
    )


@plan_rule("PS803", Severity.WARNING, source=f"{_MEGATRON}/yaml_arguments.py#L338", covers=("PIT213",))
def experts_want_sequence_parallel(p: Columns) -> Mask:
    """Experts with tensor parallelism want sequence parallelism.

    Without it every tp rank routes the same tokens and sends them all; with it each routes its own part.
    Megatron refuses the combination.
    """
    return (p.experts > 1) & (p.tp > 1) & (p.sequence_parallel == 0)


@experts_want_sequence_parallel.message
def _(case: Case) -> Hit:
    tp = case.plan.mesh.tp
    return Hit(
        message=f"{case.model.experts} experts with tp={tp} and no sequence parallelism: {tp} ranks route "
        "the same tokens",
        fix="turn sequence_parallel on",
    )


@plan_rule("PS804", Severity.WARNING, source="https://arxiv.org/abs/2412.19437")
def experts_leave_the_fast_domain(p: Columns) -> Mask:
    """Tokens sent to experts on other nodes cross the network twice per layer.

    The exchange is all-to-all, on the critical path in forward and backward. DeepSeek-V3 does it over 64
    ranks, but routes each token to at most four nodes and hides the exchange behind other work.
    """
    return (p.experts > 1) & (p.ep > p.scale_up_devices)


@experts_leave_the_fast_domain.message
def _(case: Case) -> Hit:
    ep, domain = case.plan.mesh.ep, case.hardware.scale_up_devices
    return Hit(
        message=f"ep={ep} spans scale-up domains of {counted(domain, 'device')}",
        fix=f"use {'no ep' if domain == 1 else f'ep <= {domain}'}, or route each token to few nodes",
    )


@plan_rule("PS805", Severity.ERROR, source="https://arxiv.org/abs/2101.03961")
def expert_parallel_without_experts(p: Columns) -> Mask:
    """Expert parallelism is for models with experts.

    The degree ep regroups ranks to split the experts of a mixture. A dense model has none, so its ranks
    would be grouped for nothing.
    """
    return (p.ep > 1) & (p.without_experts == 1)


@expert_parallel_without_experts.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"ep={case.plan.mesh.ep} for {case.model.name}, which has no experts",
        fix="use ep 1",
    )


@plan_rule("PS811", Severity.ERROR, source=f"{_MEGATRON}/arguments.py#L1336", covers=("PIT209",))
def context_chunks_are_uneven(p: Columns) -> Mask:
    """With context parallelism the sequence must divide by 2 x cp.

    Causal attention costs more for late tokens. So the sequence is cut in 2 x cp chunks, and each rank
    takes one from the front and its mirror from the back.
    """
    return (p.cp > 1) & (p.sequence_length % (2 * p.cp) != 0)


@context_chunks_are_uneven.message
def _(case: Case) -> Hit:
    cp, length = case.plan.mesh.cp, case.workload.sequence_length or 1
    unit = 2 * cp
    return Hit(
        message=f"a sequence of {length:,} tokens does not divide by 2 x cp = {unit}",
        fix=f"pad sequences to {-(-length // unit) * unit:,} tokens",
    )


@plan_rule("PS813", Severity.ERROR, source="https://arxiv.org/abs/2310.01889")
def context_parallel_without_sequence(p: Columns) -> Mask:
    """Context parallelism splits sequences of tokens.

    A model without tokens, such as a convolutional network, has nothing to split along.
    """
    return (p.cp > 1) & (p.without_tokens == 1)


@context_parallel_without_sequence.message
def _(case: Case) -> Hit:
    cp = case.plan.mesh.cp
    return Hit(
        message=f"cp={cp} for {case.model.name}, whose samples are no sequences",
        fix=f"use cp 1, and the {cp} ranks for ddp or fsdp2",
    )


@plan_rule("PS816", Severity.ERROR, source=_CONTEXT)
def context_parallel_of_several_stacks(p: Columns) -> Mask:
    """Context parallelism divides the positions of one stack of layers.

    An encoder and its decoder, or a tower of images before a language model, have positions of their own.
    Of them one stack would be divided, and the others be whole on each rank of a sequence.
    """
    return (p.cp > 1) & (p.stacks > 1)


@context_parallel_of_several_stacks.message
def _(case: Case) -> Hit:
    cp, model = case.plan.mesh.cp, case.model
    return Hit(
        message=f"cp={cp} for {model.name}, of {model.stacks} stacks of layers: the others would be whole",
        fix=f"use cp 1, and the {cp} ranks for fsdp2 or tp",
    )
