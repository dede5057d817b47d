"""What tensor parallelism divides of traced modules, against the closed form and by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.readers import GROUPS, HEADS, ROWS, WIDTH, Attention, Reader, Whole
from runtime.test_trace import LENGTH, hugging_face
from torch import nn

from parastrat.case import Facts
from parastrat.model import Block, ModelSpec, OperatorKind, Split
from parastrat.profiles import load_hardware, load_stack
from parastrat.runtime.tracing.trace import TracedSource, traced_module
from parastrat.saved import Saved
from parastrat.search import Constraints, find_plan
from parastrat.sources import load_source
from parastrat.stack import Kernels
from parastrat.workload import Optimizer, Precision, Workload


def source(module: Any, *arguments: Any) -> TracedSource:
    with torch.device("meta"):
        return traced_module(module(*arguments), ref="module")


def traced(module: Any, *arguments: Any) -> ModelSpec:
    return source(module, *arguments).at(LENGTH, Precision.BF16, Kernels.EAGER)


class Dropping(Attention):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.drop(super().forward(x))
        return out


def by_split(block: Block) -> dict[Split, int]:
    found = dict.fromkeys((group.split for group in block.parameters), 0)
    for group in block.parameters:
        found[group.split] += group.count
    return found


def approximately(saved: Saved) -> Any:
    return pytest.approx([getattr(saved, name) for name in Saved.__dataclass_fields__], abs=64)


def test_a_layer_is_divided_as_the_closed_form_says(tmp_path: Path) -> None:
    config, build = hugging_face("llama")
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = traced_module(build(config), ref="llama").at(LENGTH, Precision.BF16, Kernels.EAGER)
    _, layers, _ = model.blocks
    closed = load_source(str(tmp_path))
    assert closed is not None
    _, expected, _ = closed.at(LENGTH, Precision.BF16, Kernels.EAGER).blocks
    assert by_split(layers) == by_split(expected)
    assert [getattr(layers.activations.none, name) for name in Saved.__dataclass_fields__] == approximately(
        expected.activations.none
    )
    assert layers.tensor_parallel_collectives == expected.tensor_parallel_collectives == 2
    assert layers.tensor_parallel_bytes == expected.tensor_parallel_bytes
    products = [
        {
            (each.n, each.k, each.split_side): each.count
            for each in block.operators
            if each.kind is OperatorKind.MATMUL
        }
        for block in (layers, expected)
    ]
    assert products[0] == products[1]


def test_heads_and_features_tell_what_divides() -> None:
    assert traced(Reader).divisible == GROUPS
    assert traced(Reader, partial(Attention, groups=HEADS)).divisible == HEADS
    # only the feed-forward is divided
    model = traced(Reader, Whole)
    assert model.divisible == 4 * WIDTH
    inner = 2 * 4 * WIDTH * WIDTH + 4 * WIDTH
    assert by_split(model.blocks[1])[Split.TENSOR] == inner
    assert traced(nn.Linear, 8, 8).divisible is None


class Beside(nn.Module):
    """Attention and a feed-forward that read one norm, or each its own."""

    def __init__(self, width: int, norms: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(norms))
        self.mixer = Attention(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = [norm(x) for norm in self.norms]
        out: torch.Tensor = x + self.mixer(normed[0]) + self.feed(normed[-1])
        return out


class Parallel(Reader):
    def __init__(self, norms: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Beside(WIDTH, norms) for _ in range(3))


def test_what_two_regions_read_is_gathered_for_each_of_them() -> None:
    one, two = (traced(Parallel, norms).blocks[1].activations.none for norms in (1, 2))
    stream = 2 * LENGTH * WIDTH
    # whole twice, though one tensor where no rank has shares of positions
    assert one.replicated == pytest.approx(two.replicated, abs=64)
    assert two.total - one.total == pytest.approx(stream, rel=0.2)


def test_what_is_whole_in_blocks_is_divided_along_the_sequence() -> None:
    model = source(Reader)
    assert model.layout.sequence
    kept = model.at(LENGTH, Precision.BF16, Kernels.EAGER).blocks[1].activations.none
    wide = 2 * LENGTH * WIDTH
    # both norms' outputs are gathered for the columns behind them
    assert kept.replicated == 2 * wide
    assert kept.sequence == pytest.approx(2 * wide, rel=0.1)
    assert kept.tensor == pytest.approx((2 + 2 * GROUPS / HEADS + 8) * wide, rel=0.05)


def test_positions_are_told_where_they_are_no_tokens() -> None:
    config, build = hugging_face("vit")

    def images(samples: int, _: int | None) -> dict[str, torch.Tensor]:
        return {"pixel_values": torch.zeros(samples, 3, 64, 64)}

    with torch.device("meta"):
        model = traced_module(build(config), ref="vit", sample_inputs=images)
    assert model.layout.sequence
    # 16 patches and a class token
    assert model.at(None, Precision.BF16, Kernels.EAGER).positions == 17
    # those of the others are tokens, or none of them is shared
    assert traced(Reader).positions is None
    assert traced(Reader, Dropping).positions == 0


def test_logits_are_divided_for_a_loss_outside() -> None:
    last = traced(Reader).blocks[-1]
    assert last.activations.none.loss == 2 * LENGTH * ROWS
    assert by_split(last) == {Split.REPLICATED: 2 * WIDTH, Split.VOCABULARY: ROWS * WIDTH}
    predicting = [each for each in last.operators if each.n == ROWS]
    assert [each.split for each in predicting] == [Split.VOCABULARY]
    config, build = hugging_face("llama")
    with torch.device("meta"):
        own = traced_module(build(config), ref="llama").at(LENGTH, Precision.BF16, Kernels.EAGER)
    # it is given targets, and computes its loss of whole logits
    assert own.blocks[-1].activations.none.loss == 0


def test_nothing_is_looked_for_where_nobody_asks() -> None:
    with torch.device("meta"):
        model = traced_module(Reader(), ref="model", divides=False).at(
            LENGTH, Precision.BF16, Kernels.EAGER
        )
    assert model.divisible is None
    assert all(not each.activations.none.tensor for each in model.blocks)
    assert "no column and row was found" in model.caveats[0]


def test_a_search_finds_plans_of_traced_modules() -> None:
    stack, precision = load_stack("torch"), Precision.BF16_MIXED
    workload = Workload(
        global_batch_size=1, sequence_length=LENGTH, optimizer=Optimizer.ADAMW, precision=precision
    )
    job = Facts(
        model=source(Reader).at(LENGTH, precision, stack.kernels),
        hardware=load_hardware("dgx-h100"),
        workload=workload,
        stack=stack,
    )
    found = find_plan(job, Constraints(tp=2, pp=1))
    assert found.chosen is None or found.chosen.plan.mesh.tp == 2
    rejected = {rejection.code for rejection in find_plan(job, Constraints(tp=8)).rejected}
    assert "PS227" in rejected
    unknown = replace(job, model=replace(job.model, divisible=None))
    assert all(rung.case is None or rung.case.plan.mesh.tp == 1 for rung in find_plan(unknown).rungs)
