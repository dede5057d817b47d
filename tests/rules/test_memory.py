from __future__ import annotations

import pytest
from builders import case, codes

from parastrat.assess import columns_of
from parastrat.plan import Recompute, Shard
from parastrat.rules import findings_of
from parastrat.units import GIB


def test_does_not_fit() -> None:
    assert "PS101" in codes(capacity=40 * GIB - 1)
    assert "PS101" not in codes(capacity=40 * GIB)


def test_does_not_fit_states_the_numbers_and_the_next_step_down() -> None:
    made = case(capacity=30 * GIB, micro_batch_size=4)
    (finding,) = (f for f in findings_of(made, columns_of(made)) if f.code == "PS101")
    assert finding.message.startswith("needs 40.0 of 30.0 GiB on gpu; the largest part is parameters")
    assert finding.fix == "use a micro-batch of 2 instead of 4"


def test_what_states_leave_no_room_for_is_not_lessened_by_recompute() -> None:
    # 30 GiB of states alone: fewer activations do not make it fit
    made = case(capacity=25 * GIB, micro_batch_size=4, activations=15 * GIB)
    (finding,) = (f for f in findings_of(made, columns_of(made)) if f.code == "PS101")
    assert finding.fix == "offload the optimizer to host memory, or use more devices than 1"
    alone = case(capacity=25 * GIB, micro_batch_size=4, host_bytes_per_s=None)
    (finding,) = (f for f in findings_of(alone, columns_of(alone)) if f.code == "PS101")
    assert finding.fix == "use more devices than 1"


def test_is_tight() -> None:
    assert "PS102" in codes(capacity=42 * GIB)
    assert "PS102" not in codes(capacity=44 * GIB)
    assert "PS102" not in codes(capacity=39 * GIB)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"dp_shard": 8}, "dry-run it with `parastrat verify` first"),
        ({"dp_shard": 8, "pp": 2, "ep": 8}, "run a few steps first"),
    ],
)
def test_a_tight_plan_is_tried_by_what_runs_it(axes: dict[str, int], said: str) -> None:
    made = case(capacity=42 * GIB, shard=Shard.PARAMETERS, **axes)
    (finding,) = (f for f in findings_of(made, columns_of(made)) if f.code == "PS102")
    assert finding.fix.endswith(f", or {said}")


def test_logits_are_large() -> None:
    large = {"vocab": 131072, "sequence_length": 8192, "micro_batch_size": 8}
    assert "PS103" in codes(**large)
    assert "PS103" not in codes(**(large | {"vocab": 8192}))
    assert "PS103" not in codes(**large, tp=8, loss_parallel=True)
    assert "PS103" in codes(**large, tp=8, loss_parallel=False)


def test_gathered_while_tight() -> None:
    gathered = {"shard": Shard.PARAMETERS, "dp_shard": 8, "reshard_after_forward": False}
    assert "PS104" in codes(**gathered, capacity=42 * GIB)
    assert "PS104" not in codes(**gathered)
    assert "PS104" not in codes(**(gathered | {"reshard_after_forward": True}), capacity=42 * GIB)
    assert "PS104" not in codes(**(gathered | {"shard": Shard.GRADIENTS}), capacity=42 * GIB)
    assert "PS104" not in codes(**(gathered | {"dp_shard": 1}), capacity=42 * GIB)


def test_recomputes_with_room_to_spare() -> None:
    assert "PS105" in codes(recompute=Recompute.FULL, capacity=89 * GIB)
    assert "PS105" not in codes(recompute=Recompute.FULL, capacity=88 * GIB)
    assert "PS105" not in codes(recompute=Recompute.SELECTIVE, capacity=89 * GIB)


def test_a_loss_in_chunks_has_fewer_logits() -> None:
    large = {"vocab": 131072, "sequence_length": 8192, "micro_batch_size": 8}
    assert "PS103" not in codes(**large, loss_chunks=8)
    (finding,) = (f for f in findings_of(case(**large), columns_of(case(**large))) if f.code == "PS103")
    assert finding.fix.endswith("(parastrat.chunked_cross_entropy, --loss-chunks 8)")


def test_a_loss_in_chunks_needs_the_whole_head() -> None:
    assert "PS108" in codes(loss_chunks=8, tp=8)
    assert "PS108" in codes(loss_chunks=8, pp=2)
    assert "PS108" not in codes(loss_chunks=8, dp_shard=8, shard=Shard.PARAMETERS)
    assert "PS108" not in codes(tp=8)


def test_a_loss_in_chunks_is_the_scripts() -> None:
    assert "PS109" in codes(loss_chunks=8)
    assert "PS109" not in codes()
