"""Whole peaks of closed forms of families that are no decoders, beside those of their traced modules.

Both are estimated by the same means, so that what differs is what the blocks say. The modules are small
(``tests/sources/families.py``): a context and an allocator, which would hide what is off, are left out.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from parastrat.case import Facts
from parastrat.memory.one_plan import one_plan
from parastrat.model import ModelSpec
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.workload import Optimizer, Precision, Workload

pytest.importorskip("transformers")

from sources.families import FAMILIES, both

pytestmark = pytest.mark.filterwarnings("ignore")

HARDWARE, STACK = load_hardware("dgx-h100:8"), load_stack("torch")
#: samples of a micro-batch: few have little beside the states
SAMPLES = 64


POLICIES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


class Way(NamedTuple):
    """How a plan divides the work."""

    mesh: Mesh
    shard: Shard = Shard.NONE
    steps: int = 1


WAYS = {
    "single": Way(Mesh()),
    "accumulated": Way(Mesh(), steps=4),
    "ddp": Way(Mesh(dp_replicate=8)),
    "fsdp2": Way(Mesh(dp_shard=8), Shard.PARAMETERS),
    "pp": Way(Mesh(pp=2), steps=4),
}
#: families of which tp divides something in both, and which have an own reason to differ
DIVIDED = ("t5", "whisper", "bert", "vit")
#: where both are further than 2 % from each other under autocast, with how far
KNOWN = {
    # a trace has both gradients of a tied table at once, of which each stage has one; in dry runs of
    # such a plan of BERT the closed form is 0.4 % off, the trace 6 %
    ("bert", "pp"): 0.042,
    ("roberta", "pp"): 0.045,
    ("whisper", "pp"): 0.026,
    # the short gradient of a weight that autocast cast, which is much of a small stage, is left out
    ("convnext", "single"): 0.036,
    ("convnext", "accumulated"): 0.036,
    ("convnext", "ddp"): 0.036,
    ("convnext", "pp"): 0.026,
}


def peak(model: ModelSpec, way: Way, recompute: Recompute) -> float:
    """Return the bytes of tensors at the moment at which a plan holds most."""
    mesh = way.mesh
    plan = Plan(
        mesh=mesh,
        shard=way.shard,
        micro_batch_size=SAMPLES,
        gradient_accumulation_steps=way.steps,
        precision=model.precision,
        backend=Backend.NCCL,
        recompute=recompute,
        pp_schedule=PipelineSchedule.ONE_F_ONE_B if mesh.pp > 1 else None,
    )
    workload = Workload(
        global_batch_size=SAMPLES * way.steps * mesh.dp,
        sequence_length=model.sequence_length,
        optimizer=Optimizer.ADAMW,
        precision=model.precision,
    )
    facts = Facts(model=model, hardware=HARDWARE, workload=workload, stack=STACK)
    moments = (each for rank in one_plan(facts, plan).ranks for each in (*rank.moments, *rank.gathering))
    return max(each.total - each.parts["overhead"] for each in moments if each is not None)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16_MIXED], ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_closed_forms_peak_is_that_of_the_trace(name: str, way: str, precision: Precision) -> None:
    closed, traced = both(name, precision)
    tolerance = KNOWN.get((name, way), 0.02) if precision is Precision.BF16_MIXED else 0.02
    for recompute in POLICIES:
        here, there = (peak(model, WAYS[way], recompute) for model in (closed, traced))
        assert here == pytest.approx(there, rel=tolerance), recompute


@pytest.mark.parametrize("name", DIVIDED)
def test_so_it_is_where_tp_divides_both(name: str) -> None:
    closed, traced = both(name, Precision.FP32, divides=True)
    for recompute in POLICIES:
        here, there = (peak(model, Way(Mesh(tp=2)), recompute) for model in (closed, traced))
        assert here == pytest.approx(there, rel=0.02), recompute
