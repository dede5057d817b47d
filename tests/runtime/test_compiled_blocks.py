"""Blocks that are compiled where axes hook into their calls: they train as in one process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
from drawn import drawn
from runtime.context_parallel.models import WIDTH, Attention, Net
from runtime.expert_parallel.models import DIVIDED as OF_EXPERTS
from runtime.ranks import answers, on_ranks
from runtime.token_models import Steps, steps_alone, steps_of, wrapped
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.pipelining import schedules
from torch.nn import functional
from versions import follows_collectives

from parastrat.plan import Compile, PipelineSchedule, Recompute

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

SP: dict[str, Any] = {"tp": 2, "sequence_parallel": True, "loss_parallel": True}
IN_STAGES: dict[str, Any] = {
    "pp": 2,
    "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
    "reshard_after_forward": False,
}


class Layer(nn.Module):
    """Attends, and computes each position of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attend = Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norms[0](x))
        y: torch.Tensor = x + self.down(functional.silu(self.up(self.norms[1](x))))
        return y


class Equal(Layer):
    """Has weights whose gradients are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.zeros(WIDTH)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.one + self.other


net, equal = partial(Net, Layer), partial(Net, Equal)


class Counting(Layer):
    """Counts its calls, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().forward(x)


def counts(**fields: Any) -> list[float]:
    """How often blocks were called, of which backward computes each again."""
    with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")):
        model = wrapped(partial(Net, Counting), recompute=Recompute.FULL, **fields)
        steps_of(model)
    return [float(buffer) for buffer in model.buffers() if not buffer.ndim]


def compiled(build: Callable[[], nn.Module], backend: str = "aot_eager", **fields: Any) -> dict[str, Any]:
    """Train under a plan with compiled blocks; what a compiler makes of graphs is its own matter."""
    torch._dynamo.reset()
    with patch.object(torch, "compile", partial(torch.compile, backend=backend)):
        model = wrapped(build, compile=Compile.BLOCK, **fields)
        counters.clear()
        found = steps_of(model)
    return {
        "steps": found,
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
    }


SELECTIVE: dict[str, Any] = {"recompute": Recompute.SELECTIVE}
ON_TWO: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "tp, recompute": {"tp": 2, "recompute": Recompute.FULL},
    "sp": SP,
    "sp, selective": SP | SELECTIVE,
    "cp": {"cp": 2},
    "pp": IN_STAGES,
    "pp, selective": IN_STAGES | SELECTIVE,
}
DRAWN = drawn(list(ON_TWO), 1)


def two_ranks() -> dict[str, Any]:
    return answers(
        {
            **{name: partial(compiled, net, **ON_TWO[name]) for name in DRAWN},
            "sp, inductor": lambda: compiled(equal, "inductor", **SP),
            "ep": lambda: compiled(OF_EXPERTS["stacks"], dp_shard=2, ep=2),
            "counts": lambda: [counts(compile=each, **IN_STAGES) for each in Compile],
            "cp, selective": lambda: compiled(net, cp=2, **SELECTIVE),
        }
    )


def four_ranks() -> dict[str, Any]:
    return answers(
        {
            "fsdp2+sp": lambda: compiled(net, dp_shard=2, **SP),
            "pp+sp": lambda: compiled(net, **IN_STAGES, **SP),
        }
    )


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return on_ranks(2, two_ranks)


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return on_ranks(4, four_ranks)


def close(found: Steps, expected: Steps) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(own == pytest.approx(other, rel=1e-4) for own, other in pairs)


#: equal blocks have one graph in common; attention of all positions, and experts, are left out of what is
#: compiled
GRAPHS = dict.fromkeys({*ON_TWO, "sp, inductor"} - {"cp"}, 1)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=follows_collectives) if "p," in name or name in {"tp", "sp"} else name
        for name in ("sp, inductor", *DRAWN)
    ],
)
def test_two_ranks_train_as_one_process(name: str, two: list[dict[str, Any]]) -> None:
    torch.manual_seed(3)
    expected = steps_alone((equal if name == "sp, inductor" else net)())
    for rank in two:
        found = rank[name]
        assert close(found["steps"], expected), found
        assert (
            (found["graphs"], found["breaks"]) == (GRAPHS[name], 0) if name in GRAPHS else found["breaks"]
        )


def test_experts_are_left_out(two: list[dict[str, Any]]) -> None:
    torch.manual_seed(3)
    expected = steps_alone(OF_EXPERTS["stacks"]())
    for rank in two:
        assert close(rank["ep"]["steps"], expected)
        assert rank["ep"]["breaks"]


@follows_collectives
@pytest.mark.parametrize("name", ["fsdp2+sp", "pp+sp"])
def test_axes_together(name: str, four: list[dict[str, Any]]) -> None:
    torch.manual_seed(3)
    expected = steps_alone(net())
    for rank in four:
        assert close(rank[name]["steps"], expected), rank[name]


def test_where_gradients_would_be_lost_blocks_are_not_compiled(two: list[dict[str, Any]]) -> None:
    lost = "loses the gradients of what tp ranks exchange in compiled blocks"
    said = [rank["sp, inductor"] for rank in two]
    refused = {isinstance(each, str) and lost in each for each in said}
    assert refused == {not hasattr(schedules, "InferenceMode")}


def test_what_is_computed_again_counts_once(two: list[dict[str, Any]]) -> None:
    for rank in two:
        eager, own = rank["counts"]
        assert any(eager)
        assert own == eager


def test_no_part_is_computed_again_where_graphs_break(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert "does not apply compile = block with recompute = selective and cp" in rank["cp, selective"]
