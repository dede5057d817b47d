"""What getting memory anew costs, of tensors small enough to count by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jobs import block, job, matmul, row

from parastrat.cost.compute import BlockTimes, block_times
from parastrat.model import Block, Operator, Split
from parastrat.plan import Recompute
from parastrat.saved import Activations, Saved
from parastrat.units import MIB
from parastrat.workload import Precision

#: a GiB of pages each second
PAGES = 1024 * MIB
#: rows and sides of which an fp32 product has 32 MiB; its input has 8, and its weight 1
ROWS, WIDE, NARROW = 8192, 1024, 256


def product(**changes: Any) -> Operator:
    sides = {"m": ROWS, "n": WIDE, "k": NARROW} | changes
    return matmul(2 * sides["m"] * sides["n"] * sides["k"], **sides)


def fresh(of: Block, rate: float | None = PAGES, **plan: Any) -> tuple[float, float]:
    found = times(of, rate, **plan)
    return float(np.sum(found.fresh_forward)), float(np.sum(found.fresh_backward))


def times(of: Block, rate: float | None = PAGES, **plan: Any) -> BlockTimes:
    facts = job(
        of,
        precision=Precision.FP32,
        device={"fresh_bytes_per_s": rate},
        model={"vocab": 32768, "sequence_length": 256},
    )
    return block_times(facts, (of,), row(**plan))


def test_products_from_32_mib_take_memory_anew() -> None:
    assert fresh(block(product(m=ROWS - 1))) == (0, 0)
    assert fresh(block(product())) == (32 / 1024, 0)
    # four samples: what it gave, and its input's gradient
    assert fresh(block(product()), micro_batch_size=4) == (128 / 1024, 32 / 1024)
    # each of three, but where nobody knows how fast pages come
    assert fresh(block(product(count=3))) == (96 / 1024, 0)
    assert fresh(block(product()), None) == (0, 0)


def test_gradients_of_weights_take_memory_anew_once() -> None:
    wide = product(m=1, n=ROWS, k=WIDE)
    assert fresh(block(wide)) == (0, 32 / 1024)
    assert fresh(block(wide), micro_batch_size=2) == (0, 32 / 1024)
    assert fresh(block(product(m=1, n=ROWS, k=WIDE, weighted=False))) == (0, 0)


def test_tensor_parallel_ranks_have_shares() -> None:
    divided = product(split=Split.TENSOR, split_side="n")
    assert fresh(block(divided), tp=2) == (0, 0)
    assert fresh(block(divided), tp=2, micro_batch_size=2) == (32 / 1024, 0)


def test_a_loss_makes_what_it_keeps_and_what_it_needs() -> None:
    # log-softmax, and behind it two gradients, of 32,768 x 256 logits each
    saved = Saved(loss=32 * MIB)
    kept = Activations(none=saved, attention=saved, selective=saved, full=saved)
    head = block(activations=kept, working=Saved(loss=64 * MIB))
    assert fresh(head) == (32 / 1024, 64 / 1024)
    assert fresh(head, tp=2) == (0, 0)
    assert fresh(head, tp=2, micro_batch_size=2) == (32 / 1024, 64 / 1024)


def test_steps_wait_for_it() -> None:
    without, found = (times(block(product()), rate, micro_batch_size=4) for rate in (None, PAGES))
    assert found.forward - without.forward == pytest.approx(128 / 1024)
    assert found.backward - without.backward == pytest.approx(32 / 1024)
    again = [each.recomputed(Recompute.FULL) for each in (without, found)]
    assert again[1] - again[0] == pytest.approx(128 / 1024)
