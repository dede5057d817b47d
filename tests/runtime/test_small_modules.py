"""Estimates, plans and dry runs of modules as beginners write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli.conftest import Typed
from runtime.small_modules import scripted
from torch import nn

import parastrat
from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.errors import ModelError, WrapError
from parastrat.memory import memory_columns, memory_totals, plan_memory
from parastrat.memory.parts import PARTS
from parastrat.plan import Mesh
from parastrat.runtime.refusals import check_gradients
from parastrat.runtime.ways import chooses_ways
from parastrat.search import Constraints, find_plan
from parastrat.search.rows import plan_at
from parastrat.search.space import every_plan

pytest_plugins = ["cli.conftest"]

MODULES = Path(__file__).with_name("small_modules.py")
NAMES = ("Perceptron", "Rating", "Normed", "Adapted", "Crossed", "images", "deep")


def flags(name: str, on: str) -> JobFlags:
    return JobFlags(
        model=f"{MODULES}:{name}", on=on, global_batch=64, ranks_per_node=4 if on[:3] == "cpu" else None
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on", ["dgx-h100:1", "cpu:2"])
def test_there_is_a_plan(name: str, on: str) -> None:
    job = resolved(flags(name, on))
    for fixed in (Constraints(), Constraints(applied=True), Constraints(pp=2), Constraints(strategy="ddp")):
        result = find_plan(job.facts, fixed, model_at=job.model_at)
        # no rule lets one block be cut in two
        assert result.chosen is not None or fixed.pp == 2


@pytest.mark.parametrize("name", NAMES)
def test_one_plan_alone_needs_what_it_does_among_others(name: str) -> None:
    """Pipelines too deep for the model as well: estimates are total."""
    facts = resolved(flags(name, "dgx-h100:1")).facts
    drawn = np.random.default_rng(0)
    for fixed in (Constraints(), Constraints(pp=2), Constraints(pp=4)):
        columns = every_plan(facts, fixed)
        if not len(columns.pp):
            continue
        columns = columns.at(drawn.choice(len(columns.pp), min(60, len(columns.pp)), replace=False))
        together, totals = memory_columns(facts, columns), memory_totals(facts, columns)
        for row in range(len(columns.pp)):
            alone = plan_memory(facts, plan_at(columns, row))
            assert alone.parts == {part: pytest.approx(together[part][row], abs=1) for part in PARTS}
            assert totals[row] == pytest.approx(alone.total, abs=2 * len(PARTS))


def test_shapes_that_a_forward_would_tell_are_asked_for(typed: Typed) -> None:
    done = typed("recommend", f"{MODULES}:lazy", "--on", "dgx-h100:1")
    assert (done.code, done.out) == (2, "")
    assert "2.weight has no shape yet: a lazy layer takes it from its first forward" in done.err
    for model in (nn.Sequential(nn.LazyLinear(4)), lambda: nn.Sequential(nn.LazyBatchNorm1d())):
        with pytest.raises(ModelError, match="has no shape yet"):
            parastrat.auto_parallelize(model, plan=find_one())
    ran = nn.Sequential(nn.LazyLinear(4))
    ran(torch.zeros(1, 3))
    assert parastrat.auto_parallelize(ran, plan=find_one()) is ran


def find_one() -> parastrat.Plan:
    """A plan for one process."""
    chosen = find_plan(
        resolved(JobFlags(model=f"{MODULES}:Perceptron", on="cpu:1", ranks_per_node=1)).facts
    )
    assert chosen.chosen is not None
    return chosen.chosen.plan


def test_what_a_recurrent_layer_is_given_is_not_guessed(typed: Typed) -> None:
    done = typed("recommend", f"{MODULES}:Heard", "--on", "dgx-h100:1")
    assert (done.code, done.out) == (2, "")
    assert "cannot be guessed: its first layer, cells, is LSTM, which does not say it" in done.err
    assert "def sample_inputs(micro_batch_size, sequence_length)" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axis"), [("Rating", "--tp"), ("Rating", "--pp"), ("Normed", "--pp"), ("Perceptron", "--tp")]
)
def test_dry_runs_know_what_the_module_takes(typed: Typed, name: str, axis: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    words = ("--on", "dgx-h100:1", axis, "2", "--global-batch", "64")
    # some rule may be against it; the file is written all the same
    assert typed("estimate", f"{MODULES}:{name}", *words, "-o", plan).code in (0, 1)
    done = typed("verify", plan)
    assert done.code == ("The plan breaks" in done.out), done.err
    assert "Dry run of" in done.out


@pytest.mark.slow
def test_proofs_are_told_what_the_function_beside_the_builder_says(typed: Typed, tmp_path: Path) -> None:
    model, plan = tmp_path / "model.py", tmp_path / "plan.toml"
    model.write_text(
        """\
import torch
from torch import nn

class Rating(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids = nn.Embedding(50, 16)
        self.hidden, self.out = nn.Linear(24, 64), nn.Linear(64, 1)

    def forward(self, ids, features):
        return self.out(self.hidden(torch.cat([self.ids(ids), features], -1)).relu())

def build():
    return Rating()

def sample_inputs(micro_batch_size, sequence_length):
    return torch.zeros(micro_batch_size, dtype=torch.long), torch.zeros(micro_batch_size, 8)
""",
        encoding="utf-8",
    )
    words = ("--on", "dgx-h100:1", "--tp", "2", "--global-batch", "64")
    assert typed("estimate", f"{model}:build", *words, "-o", plan).code == 0
    done = typed("verify", plan)
    assert done.code == 0, done.err


@pytest.mark.slow
def test_a_layout_without_repeated_blocks_is_not_written_and_told_why(typed: Typed, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    words = ("--on", "dgx-h100:1", "--tp", "2", "--global-batch", "64")
    assert typed("estimate", f"{MODULES}:Perceptron", *words, "-o", plan).code == 0
    done = typed("emit", plan, "--to", "python")
    assert done.code == 2
    assert "the model has 0 lists of several blocks, not one" in done.err


def test_sparse_gradients_are_not_estimated(typed: Typed) -> None:
    done = typed("recommend", f"{MODULES}:Looked", "--on", "dgx-h100:1")
    assert (done.code, done.out) == (2, "")
    assert "table makes sparse gradients: what they take hangs on a batch's ids" in done.err
    assert "sparse=False" in done.err


@pytest.mark.parametrize("mesh", [Mesh(dp_replicate=2), Mesh(dp_shard=2), Mesh(pp=2), Mesh(tp=2)])
def test_what_torch_jit_compiled_is_refused(mesh: Mesh) -> None:
    plan = replace(find_one(), mesh=mesh)
    with pytest.raises(WrapError, match=r"0 is compiled by torch\.jit"):
        check_gradients(scripted(), plan)
    check_gradients(scripted(), find_one())
    # nor does it stop who asks which way a forward takes
    assert not chooses_ways(scripted())
