"""PS7xx: pipelines, their stages and schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.case import stated
from parastrat.choices import is_any_of
from parastrat.columns import Columns, code_of
from parastrat.finding import Hit, Severity
from parastrat.plan import PipelineSchedule, Shard
from parastrat.rules.divisors import divisors, either, nearest_multiples
from parastrat.rules.rule import PlanRule, case_rule, plan_rule
from parastrat.schedules import SPLITS
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.plan import Plan
    from parastrat.units import Mask

_SCHEDULES = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/pipelining/schedules.py"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron/training/arguments.py"

_GPIPE = code_of(PipelineSchedule.GPIPE)
_ONE_F_ONE_B = code_of(PipelineSchedule.ONE_F_ONE_B)
_INTERLEAVED = code_of(PipelineSchedule.INTERLEAVED)
_LOOPED_BFS = code_of(PipelineSchedule.LOOPED_BFS)
_ZERO_BUBBLE = code_of(PipelineSchedule.INTERLEAVED_ZERO_BUBBLE)
_ZBV = code_of(PipelineSchedule.ZBV)
_DUAL_PIPE_V = code_of(PipelineSchedule.DUAL_PIPE_V)

#: share of a step that a pipeline may idle before it is remarked on
_LARGE_BUBBLE = 0.2


@plan_rule("PS701", Severity.ERROR, source=f"{_SCHEDULES}#L1021", covers=("PIT306",))
def fewer_micro_batches_than_stages(p: Columns) -> Mask:
    """A pipeline needs at least as many micro-batches as stages.

    1F1B fills every stage before it drains one; torch refuses less. DualPipeV counts both of a rank's
    stages.
    """
    single = (p.pp_schedule == _ONE_F_ONE_B) & (p.gradient_accumulation_steps < p.pp)
    double = (p.pp_schedule == _DUAL_PIPE_V) & (p.gradient_accumulation_steps < p.pp * p.virtual_stages)
    return (p.pp > 1) & (single | double)


@fewer_micro_batches_than_stages.message
def _(case: Case) -> Hit:
    plan = case.plan
    stages = plan.mesh.pp * plan.virtual_stages
    share = plan.micro_batch_size * plan.gradient_accumulation_steps
    smaller = f"use a micro-batch of {share // stages}" if share >= stages else f"use pp <= {share}"
    return Hit(
        message=f"{plan.gradient_accumulation_steps} micro-batch"
        f"{'' if plan.gradient_accumulation_steps == 1 else 'es'} for {stages} stages",
        fix=f"{smaller}, or a global batch of at least {stages * plan.micro_batch_size * plan.mesh.dp:,}",
    )


@plan_rule("PS702", Severity.ERROR, source=f"{_SCHEDULES}#L2938", covers=("PIT307",))
def micro_batches_break_rounds(p: Columns) -> Mask:
    """Interleaved schedules need micro-batches in equal rounds.

    They run about pp micro-batches through one chunk before the next: n // pp rounds, which must divide the
    number of micro-batches.
    """
    rounds = p.gradient_accumulation_steps // p.pp
    uneven = p.gradient_accumulation_steps % (rounds + (rounds == 0)) != 0
    return (p.pp > 1) & ((p.pp_schedule == _INTERLEAVED) | (p.pp_schedule == _ZERO_BUBBLE)) & uneven


@micro_batches_break_rounds.message
def _(case: Case) -> Hit:
    plan = case.plan
    count, pp = plan.gradient_accumulation_steps, plan.mesh.pp
    return Hit(
        message=f"{count} micro-batches do not divide into {count // pp} rounds of pp={pp}",
        fix=f"use {either(nearest_multiples(count, pp))} micro-batches",
    )


@plan_rule("PS703", Severity.ERROR, source=_MEGATRON, covers=("PIT206",))
def virtual_stages_without_pipeline(p: Columns) -> Mask:
    """Virtual stages belong to a pipeline.

    They are the chunks that one pipeline rank holds of the chain. Without pp one rank holds all of it.
    """
    return (p.virtual_stages > 1) & (p.pp == 1)


@virtual_stages_without_pipeline.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"virtual_stages = {case.plan.virtual_stages} with pp=1",
        fix="set virtual_stages = 1, or pp > 1",
    )


@plan_rule("PS704", Severity.ERROR, source=f"{_SCHEDULES}#L3249", covers=("PIT310",))
def v_schedule_without_two_stages(p: Columns) -> Mask:
    """V-shaped schedules take exactly two stages a rank.

    ZBV and DualPipeV run the chain down the ranks and up again: the first rank holds the first and the last
    stage.
    """
    v_shaped = (p.pp_schedule == _ZBV) | (p.pp_schedule == _DUAL_PIPE_V)
    return (p.pp > 1) & v_shaped & (p.virtual_stages != 2)


@v_schedule_without_two_stages.message
def _(case: Case) -> Hit:
    schedule = case.plan.pp_schedule
    return Hit(
        message=f"{schedule.value if schedule else 'no schedule'} with virtual_stages = "
        f"{case.plan.virtual_stages}",
        fix="set virtual_stages = 2",
    )


@plan_rule("PS705", Severity.WARNING, source="https://arxiv.org/abs/2104.04473", covers=("PIT308",))
def bubble_is_large(p: Columns) -> Mask:
    """A pipeline should not idle more than a fifth of the step.

    Filling and draining cost pp - 1 slots of the n * v + pp - 1 that a rank has, for n micro-batches and v
    chunks a rank. More micro-batches, more chunks or fewer stages shrink the share; zero-bubble schedules
    fill most of it with the weights' gradients.
    """
    slots = p.gradient_accumulation_steps * p.virtual_stages + p.pp - 1
    return ~is_any_of(p.pp_schedule, SPLITS) & ((p.pp - 1) / slots > _LARGE_BUBBLE)


@bubble_is_large.message
def _(case: Case) -> Hit:
    plan = case.plan
    pp, chunks, count = plan.mesh.pp, plan.virtual_stages, plan.gradient_accumulation_steps
    bubble = (pp - 1) / (count * chunks + pp - 1)
    enough = -(-4 * (pp - 1) // chunks)
    return Hit(
        message=f"pp={pp} with {counted(count, 'micro-batch')} of {counted(chunks, 'chunk')} a rank "
        f"idles {100 * bubble:.0f} % of the step",
        fix=f"use at least {enough} micro-batches, or fewer stages",
    )


@plan_rule("PS706", Severity.ERROR, source=f"{_SCHEDULES}#L3641", covers=("PIT309",))
def schedule_is_missing(p: Columns) -> Mask:
    """A pipeline needs a schedule.

    The order of forwards and backwards decides memory and bubble; there is no neutral one.
    """
    return (p.pp > 1) & (p.pp_schedule < 0)


@schedule_is_missing.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"pp={case.plan.mesh.pp} without pp_schedule",
        fix=f"set pp_schedule = {PipelineSchedule.ONE_F_ONE_B.value}, or "
        f"{PipelineSchedule.INTERLEAVED.value} with virtual stages",
    )


@plan_rule("PS707", Severity.INFO, source=_SCHEDULES)
def schedule_without_pipeline(p: Columns) -> Mask:
    """A schedule means nothing without a pipeline.

    With pp = 1 there is one stage: its micro-batches run one after the other, and nothing is ordered. A
    plan that names a schedule was probably meant to have stages.
    """
    return (p.pp == 1) & (p.pp_schedule >= 0)


@schedule_without_pipeline.message
def _(case: Case) -> Hit:
    schedule = case.plan.pp_schedule
    return Hit(
        message=f"pp_schedule = {schedule.value if schedule else 'none'} with pp=1",
        fix="leave pp_schedule out, or set pp > 1",
    )


@plan_rule("PS708", Severity.ERROR, source=f"{_SCHEDULES}#L872")
def single_stage_schedule_with_chunks(p: Columns) -> Mask:
    """GPipe and 1F1B run one stage a rank.

    torch's single-stage schedules take one stage object; several chunks a rank need an interleaved, looped
    or V-shaped schedule.
    """
    single = (p.pp_schedule == _GPIPE) | (p.pp_schedule == _ONE_F_ONE_B)
    return (p.pp > 1) & single & (p.virtual_stages > 1)


@single_stage_schedule_with_chunks.message
def _(case: Case) -> Hit:
    plan = case.plan
    return Hit(
        message=f"{plan.pp_schedule.value if plan.pp_schedule else 'no schedule'} with virtual_stages = "
        f"{plan.virtual_stages}",
        fix=f"use {PipelineSchedule.INTERLEAVED.value}, or virtual_stages = 1",
    )


@plan_rule("PS709", Severity.WARNING, source=f"{_SCHEDULES}#L2891")
def interleaving_with_one_chunk(p: Columns) -> Mask:
    """Interleaving needs at least two chunks a rank.

    With one it is 1F1B, or GPipe for the breadth-first order, at the price of a more general runtime.
    """
    looped = (p.pp_schedule == _INTERLEAVED) | (p.pp_schedule == _LOOPED_BFS)
    return (p.pp > 1) & looped & (p.virtual_stages == 1)


@interleaving_with_one_chunk.message
def _(case: Case) -> Hit:
    schedule = case.plan.pp_schedule
    return Hit(
        message=f"{schedule.value if schedule else 'no schedule'} with one stage a rank "
        f"(pp={case.plan.mesh.pp})",
        fix=f"set virtual_stages = 2, or use {PipelineSchedule.ONE_F_ONE_B.value}",
    )


@plan_rule("PS710", Severity.ERROR, source=f"{_MEGATRON}#L969")
def more_stages_than_layers(p: Columns) -> Mask:
    """Every stage needs a layer.

    pp x virtual_stages stages are cut from the chain of repeated layers. With more of them than layers some
    ranks only pass activations on. One stage holds whatever there is, repeated or not.
    """
    stages = p.pp * p.virtual_stages
    return (stages > p.layers) & (stages > 1)


@more_stages_than_layers.message
def _(case: Case) -> Hit:
    plan, layers = case.plan, case.model.layers
    return Hit(
        message=f"pp={plan.mesh.pp} x {plan.virtual_stages} virtual stages = "
        f"{plan.mesh.pp * plan.virtual_stages} stages for {layers} layers",
        fix=f"use pp x virtual_stages <= {max(layers, 1)}",
    )


@plan_rule(
    "PS711",
    Severity.WARNING,
    source="https://arxiv.org/abs/2407.21783",
    covers=("PIT204", "PIT205"),
)
def stages_are_uneven(p: Columns) -> Mask:
    """Stages should hold equally many layers.

    The fullest stage sets the pace of all. Embedding and head may count as a layer each: Llama 3 405B puts
    126 layers and these two on 16 stages. parastrat cuts by FLOPs and torch takes any cut; Megatron wants
    the layout written out and refuses a remainder otherwise.
    """
    stages = p.pp * p.virtual_stages
    uneven = (p.layers % stages != 0) & ((p.layers + 2) % stages != 0)
    return (p.pp > 1) & uneven & (p.layers > stages)


@stages_are_uneven.message
def _(case: Case) -> Hit:
    plan, layers = case.plan, case.model.layers
    stages = plan.mesh.pp * plan.virtual_stages
    fullest = -(-layers // stages)
    waited = 100 * fullest * stages / layers - 100
    even = " or ".join(
        f"pp {pp}" if chunks == plan.virtual_stages else f"pp {pp} x virtual_stages {chunks}"
        for pp, chunks in _even_stages(case)
    )
    written = "write the layout out"
    return Hit(
        message=f"{layers} layers on {stages} stages: the fullest has {fullest}, the average "
        f"{layers / stages:.1f}, so up to {waited:.0f} % of the time is waited for",
        fix=f"use {even}, whose stages are even, or {written}"
        if even
        else f"{written}: no other pp of these ranks has even stages and whole batches",
    )


def _even_stages(case: Case) -> list[tuple[int, int]]:
    """Return up to two pp, each with virtual stages, that the plan's ranks and schedule take: the nearest.

    The data axes take what pp leaves of the ranks, and the global batch stays.
    """
    plan, layers = case.plan, case.model.layers
    ways = [
        (pp, chunks)
        for pp, steps in _pipelines(plan)
        for chunks in range(1, layers // pp + 1)
        if not _objections(plan, layers, pp, chunks, steps)
    ]
    own, chunks = plan.mesh.pp, plan.virtual_stages
    ways.sort(key=lambda way: (max(way[0], own) / min(way[0], own), abs(way[1] - chunks), way))
    return ways[:2]


def _pipelines(plan: Plan) -> list[tuple[int, int | None]]:
    """Return each pp that leaves whole data axes, with the micro-batches of a step that it has."""
    mesh = plan.mesh
    ranks = mesh.world_size // (mesh.cp * mesh.tp * (mesh.dp_replicate if mesh.dp_shard > 1 else 1))
    # unknown of a file that leaves its batch to a variable
    steps = stated(plan, "gradient_accumulation_steps")
    found: list[tuple[int, int | None]] = []
    for pp in divisors(ranks)[1:]:
        data, inner = mesh.world_size // (pp * mesh.cp * mesh.tp), ranks // pp * mesh.cp * mesh.tp
        share, over = (None, 0) if steps is None else divmod(steps * mesh.dp, data)
        if over == 0 and inner % mesh.ep == 0:
            found.append((pp, share))
    return found


def _objections(plan: Plan, layers: int, pp: int, chunks: int, steps: int | None) -> bool:
    """Return whether a rule of stages speaks against so many."""
    schedule = stated(plan, "pp_schedule")
    columns = Columns(
        {
            "pp": pp,
            "virtual_stages": chunks,
            "layers": layers,
            "pp_schedule": -1 if schedule is None else code_of(schedule),
            "gradient_accumulation_steps": steps,
        }
    )
    rules = (*SCHEDULE_RULES, interleaving_with_one_chunk, more_stages_than_layers, stages_are_uneven)
    judged = rules if steps is not None else [rule for rule in rules if rule not in _OF_STEPS]
    return any(rule.mask(columns) for rule in judged)


@plan_rule(
    "PS712",
    Severity.WARNING,
    source="https://github.com/pytorch/torchtitan/blob/b5bcd76/torchtitan/config/configs.py",
)
def gathers_for_every_micro_batch(p: Columns) -> Mask:
    """Under a pipeline keep FSDP's parameters gathered between micro-batches.

    Resharding after forward gathers every block again for each micro-batch, where once per step is enough:
    torch's stages keep it gathered from its backward until the next forward has run. torchtitan never
    reshards with pp unless told to.
    """
    sharded = (p.shard == code_of(Shard.PARAMETERS)) & (p.dp_shard * p.cp > 1)
    return (p.pp > 1) & sharded & (p.reshard_after_forward == 1)


@gathers_for_every_micro_batch.message
def _(case: Case) -> Hit:
    count = case.plan.gradient_accumulation_steps
    return Hit(
        message=f"every block is gathered {count + 1} times a step, for {count} micro-batches",
        fix="set reshard_after_forward = false",
    )


@plan_rule(
    "PS713",
    Severity.INFO,
    source="https://docs.pytorch.org/docs/stable/distributed.pipelining.html",
)
def ddp_under_chunks(p: Columns) -> Mask:
    """DDP does not hold several stages of one rank.

    DDP rebuilds its buckets in the order of the first backward. With more than one chunk a rank torch 2.13
    fails there ("rebuilt params size"). `auto_parallelize` and what `emit --to python` writes average the
    gradients of all stages at the end of a step instead; FSDP2, or its `replicate`, works under every
    schedule, and Megatron has a DDP of its own.
    """
    chunked = (p.pp > 1) & (p.virtual_stages > 1)
    return chunked & (p.shard == code_of(Shard.NONE)) & (p.dp > 1) & (p.dtensors == 1)


@ddp_under_chunks.message
def _(case: Case) -> Hit:
    plan = case.plan
    return Hit(
        message=f"{plan.mesh.dp} replicas of {plan.virtual_stages} stages a rank: auto_parallelize "
        "averages their gradients at the end of a step; torch's DDP around them fails",
        fix="in a script that wraps its stages itself do the same, or take FSDP2's replicate",
    )


@case_rule(
    "PS714",
    Severity.INFO,
    source=""
    "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron/core/distributed/finalize_model_grads.py",
)
def tied_weights_on_two_stages(case: Case) -> Hit | None:
    """Weights tied across stages need their gradients summed.

    An embedding that is also the head lies on the first and on the last stage: two copies, one parameter.
    Each step must add their gradients, or they drift apart without an error.
    """
    pp = case.plan.mesh.pp
    groups = [
        group.tie_group for block in case.model.blocks for group in block.parameters if group.tie_group
    ]
    tied = sorted({name for name in groups if groups.count(name) > 1})
    if pp == 1 or not tied:
        return None
    return Hit(
        message=f"{', '.join(tied)} is shared between blocks that pp={pp} puts on different stages",
        fix="all-reduce its gradient between these stages, as auto_parallelize and Megatron do, "
        "or untie it",
    )


#: those that read the number of micro-batches
_OF_STEPS = (fewer_micro_batches_than_stages, micro_batches_break_rounds)

#: what torch refuses, or cannot build, of schedules, stages a rank and numbers of micro-batches
SCHEDULE_RULES: tuple[PlanRule, ...] = (
    fewer_micro_batches_than_stages,
    micro_batches_break_rounds,
    v_schedule_without_two_stages,
    single_stage_schedule_with_chunks,
)
