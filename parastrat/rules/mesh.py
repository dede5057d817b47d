"""PS200 to PS209, PS213, PS214: the mesh, its divisibility, and where its ranks lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.case import stated
from parastrat.columns import code_of
from parastrat.finding import Hit, Severity
from parastrat.hardware import FabricKind
from parastrat.plan import Shard
from parastrat.rules.divisors import either, nearest_divisors, ranks_beside
from parastrat.rules.rule import plan_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask

_TITAN = "https://github.com/pytorch/torchtitan/blob/b5bcd76/torchtitan"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron"

_PARAMETERS = code_of(Shard.PARAMETERS)


@plan_rule(
    "PS200",
    Severity.ERROR,
    source=f"{_TITAN}/distributed/parallel_dims.py",
    covers=("PIT101", "PIT102", "PIT103"),
)
def mesh_is_not_the_world(p: Columns) -> Mask:
    """The degrees must multiply to the number of devices.

    pp x dp_replicate x dp_shard x cp x tp is the number of ranks; ep lies inside them. A larger mesh cannot
    be built. A smaller one is accepted silently: the ranks outside it idle, and hang in the first
    collective over the whole world.
    """
    return p.world_size != p.devices


@mesh_is_not_the_world.message
def _(case: Case) -> Hit:
    mesh, devices = case.plan.mesh, case.hardware.world_size
    rest = mesh.pp * mesh.cp * mesh.tp
    fix = (
        f"use {devices // rest} data-parallel ranks in all"
        if devices % rest == 0
        else f"choose pp, cp and tp whose product, now {rest}, divides {devices}"
    )
    return Hit(
        message=f"pp {mesh.pp} x dp_replicate {mesh.dp_replicate} x dp_shard {mesh.dp_shard} x "
        f"cp {mesh.cp} x tp {mesh.tp} = {mesh.world_size} ranks, but "
        f"{case.hardware.name} has {devices} devices",
        fix=fix,
    )


@plan_rule(
    "PS201",
    Severity.ERROR,
    source=f"{_MEGATRON}/core/transformer/transformer_config.py#L1448",
    covers=("PIT201",),
)
def heads_do_not_divide(p: Columns) -> Mask:
    """The attention heads must divide evenly over tp.

    Tensor parallelism gives every rank whole heads. With a remainder, the projections cannot be viewed as
    heads on a rank: Megatron refuses, DTensor fails in the reshape of the first forward.
    """
    return p.heads % p.tp != 0


@heads_do_not_divide.message
def _(case: Case) -> Hit:
    tp, heads = case.plan.mesh.tp, case.model.heads or 1
    choices = nearest_divisors(tp, ranks_beside(case.plan.mesh), allowed=_divides_heads(case))
    return Hit(
        message=f"{heads} heads cannot be split evenly over tp={tp}",
        fix=f"use tp {either(choices)}, which divide{'s' if len(choices) == 1 else ''} {heads} heads",
    )


def _divides_heads(case: Case) -> Callable[[int], bool]:
    """Return what tells whether a tp divides the model's heads, and splits no group of them."""
    # every degree divides 0
    heads, kv_heads = stated(case.model, "heads") or 0, stated(case.model, "kv_heads") or 0
    return lambda tp: heads % tp == 0 and (kv_heads % tp == 0 or tp % kv_heads == 0)


@plan_rule(
    "PS202",
    Severity.ERROR,
    source=f"{_MEGATRON}/core/transformer/transformer_config.py#L1466",
    covers=("PIT202",),
)
def kv_heads_do_not_divide(p: Columns) -> Mask:
    """The key-value heads must divide over tp, or tp must be a multiple of them.

    With grouped-query attention each rank needs the keys and values of its own query heads: whole key-value
    heads, or a copy of one. Anything else splits a group.
    """
    return (p.kv_heads % p.tp != 0) & (p.tp % p.kv_heads != 0)


@kv_heads_do_not_divide.message
def _(case: Case) -> Hit:
    tp, kv_heads = case.plan.mesh.tp, case.model.kv_heads or 1
    choices = nearest_divisors(tp, kv_heads, ranks_beside(case.plan.mesh))
    return Hit(
        message=f"{kv_heads} key-value heads neither divide over tp={tp} nor divide it",
        fix=f"use tp {either(choices)}, which divide{'s' if len(choices) == 1 else ''} {kv_heads}",
    )


@plan_rule(
    "PS203",
    Severity.WARNING,
    source=f"{_MEGATRON}/core/transformer/transformer_config.py#L1466",
    covers=("PIT203",),
)
def kv_heads_are_copied(p: Columns) -> Mask:
    """Beyond the number of key-value heads tp copies them.

    The ranks that share a head each hold its projection and compute it again, and must keep the copies
    equal. Megatron does that, and `auto_parallelize` for models that bring a tensor-parallel plan with
    them; plans written for plain DTensor fail in the view of the first forward.
    """
    return (p.tp > p.kv_heads) & (p.tp % p.kv_heads == 0)


@kv_heads_are_copied.message
def _(case: Case) -> Hit:
    tp, kv_heads = case.plan.mesh.tp, case.model.kv_heads or 1
    return Hit(
        message=f"tp={tp} exceeds {kv_heads} key-value heads: each is copied to {tp // kv_heads} ranks",
        fix=f"use tp <= {kv_heads}, or what copies key-value heads, as auto_parallelize and Megatron do",
    )


@plan_rule(
    "PS206",
    Severity.WARNING,
    source="https://arxiv.org/abs/2104.04473",
    covers=("PIT105",),
)
def tensor_parallel_leaves_the_fast_domain(p: Columns) -> Mask:
    """Keep tensor parallelism inside one scale-up domain.

    Every layer all-reduces activations on the critical path, at the slowest link's speed. Between nodes
    that is a network card instead of NVLink; whether it pays all the same, the estimate says.
    """
    return p.tp > p.scale_up_devices


@tensor_parallel_leaves_the_fast_domain.message
def _(case: Case) -> Hit:
    tp, limit = case.plan.mesh.tp, case.hardware.scale_up_devices
    return Hit(
        message=f"tp={tp} spans scale-up domains of {counted(limit, 'device')}",
        fix=f"use {'no tp' if limit == 1 else f'tp <= {limit}'}, and fsdp2 or pp between the domains",
    )


@plan_rule(
    "PS207",
    Severity.WARNING,
    source="https://github.com/NVIDIA/nccl-tests/issues/307",
    covers=("PIT106",),
)
def tensor_parallel_over_pcie(p: Columns) -> Mask:
    """Tensor parallelism wants NVLink, not PCIe.

    PCIe moves a tenth of what NVLink moves, shared by the cards of a root, and boards without NVLink often
    lack peer access too. Activations cross it several times per layer; FSDP and pipelines cross it less.
    """
    return (p.tp > 1) & (p.scale_up_kind == code_of(FabricKind.PCIE))


@tensor_parallel_over_pcie.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"tp={case.plan.mesh.tp} all-reduces over PCIe: {case.hardware.name} has no NVLink",
        fix="use fsdp2, or pp, instead of tp, where they fit",
    )


@plan_rule(
    "PS208",
    Severity.WARNING,
    source=f"{_MEGATRON}/core/parallel_state.py#L883",
    covers=("PIT107",),
)
def tensor_groups_straddle_domains(p: Columns) -> Mask:
    """The scale-up domain should be a multiple of tp.

    Ranks are numbered with tp innermost. If the domain is no multiple of tp, some groups lie across two
    domains, and every step waits for these.
    """
    return (
        (p.tp <= p.scale_up_devices)
        & (p.scale_up_devices % p.tp != 0)
        & (p.world_size > p.scale_up_devices)
    )


@tensor_groups_straddle_domains.message
def _(case: Case) -> Hit:
    tp, domain = case.plan.mesh.tp, case.hardware.scale_up_devices
    choices = nearest_divisors(tp, domain, ranks_beside(case.plan.mesh), allowed=_divides_heads(case))
    return Hit(
        message=f"tp={tp} does not divide scale-up domains of {domain} devices: some groups span two",
        fix=f"use tp {either(choices)}",
    )


@plan_rule(
    "PS213",
    Severity.WARNING,
    source="https://github.com/oumi-ai/oumi/pull/213",
    covers=("PIT110",),
)
def shard_groups_straddle_domains(p: Columns) -> Mask:
    """A shard group of HSDP should fill whole scale-up domains, or divide one.

    The point of replicas is that parameters are gathered over the fast links and only gradients cross the
    slow ones. A group of an odd size has members behind the slow link, and gathers at its speed.
    """
    group = p.dp_shard * p.cp * p.tp
    straddles = (group % p.scale_up_devices != 0) & (p.scale_up_devices % group != 0)
    return (p.shard == _PARAMETERS) & (p.dp_replicate > 1) & (p.dp_shard * p.cp > 1) & straddles


@shard_groups_straddle_domains.message
def _(case: Case) -> Hit:
    mesh, domain = case.plan.mesh, case.hardware.scale_up_devices
    group = mesh.dp_shard * mesh.cp * mesh.tp
    inner = mesh.cp * mesh.tp
    fix = (
        f"use dp_shard {domain // inner}, one domain"
        if domain % inner == 0
        else f"choose dp_shard x cp x tp = {domain}"
    )
    return Hit(
        message=f"shard groups of {group} devices straddle scale-up domains of {domain}",
        fix=fix,
    )


@plan_rule(
    "PS214",
    Severity.INFO,
    source="https://arxiv.org/abs/1909.08053",
    covers=("PIT207",),
)
def vocabulary_does_not_divide(p: Columns) -> Mask:
    """A vocabulary that tp does not divide is padded, or whole on every rank.

    It runs: Megatron pads the table, which changes the checkpoint's shape; `auto_parallelize` leaves table
    and head whole, so that every rank predicts, and keeps logits of, all of it.
    """
    return (p.tp > 1) & (p.vocab % p.tp != 0)


@vocabulary_does_not_divide.message
def _(case: Case) -> Hit:
    tp, vocab = case.plan.mesh.tp, case.model.vocab or 1
    unit = 128 * tp
    return Hit(
        message=f"a vocabulary of {vocab:,} does not divide over tp={tp}",
        fix=f"pad it to {-(-vocab // unit) * unit:,}, a multiple of 128 x {tp}",
    )
