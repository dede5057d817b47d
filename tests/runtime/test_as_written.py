"""Models as people write them: what they return, leave unused, and hang on their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan
from runtime.pipeline.stages import ONE_F_ONE_B
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from versions import exports_dataclasses, reduces_unused

import parastrat
from parastrat.errors import ParastratError, UsageError, WrapError
from parastrat.plan import PipelineSchedule, Recompute
from parastrat.runtime.refusals import check_gradients
from parastrat.runtime.tensor_parallel.copies import Source, small_copies
from parastrat.runtime.tensor_parallel.derived import derived_layout
from parastrat.runtime.tensors.leaves import tensors_in
from parastrat.runtime.tensors.slots import without_data
from parastrat.runtime.training.counted import counted
from parastrat.runtime.training.first_ranks_buffers import _send
from parastrat.runtime.training.reached import reached_from
from parastrat.runtime.ways import chooses_ways, drawn_ways, outside_of
from parastrat.workload import Precision

WIDTH, CLASSES, SAMPLES, STEPS = 8, 3, 4, 3


@dataclass
class Answer:
    """What a model returns; torch's trees do not know it."""

    logits: torch.Tensor
    parts: dict[str, torch.Tensor]


class Prenormed(nn.Module):
    """A layer of it has the name of a function that returns a number."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(WIDTH), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) if self.first else x


def residual() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


class Chain(nn.Module):
    """Residual blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(residual() for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Answering(Chain):
    """Returns a dataclass, with a penalty that every block adds to: no later block reads it."""

    def forward(self, x: torch.Tensor) -> Any:
        penalty = x.new_zeros(())
        for block in self.blocks:
            x = block(x)
            penalty = penalty + x.square().mean()
        return Answer(self.head(x), {"penalty": penalty})


class Naming(nn.Module):
    """Returns an object with tensors for attributes; nothing in it repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.head(self.layer(self.embed(x).mean(1)).relu()))


class Secretive(Naming):
    """Returns an object that nobody can look into."""

    def forward(self, x: torch.Tensor) -> Any:
        return Sealed(super().forward(x).logits)


class Sealed:
    __slots__ = ("logits",)

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Leftover(Chain):
    """Has a head that nothing calls, and leaves a block out."""

    def __init__(self) -> None:
        super().__init__()
        self.old_head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks[:-1]:
            x = x + block(x)
        return self.head(x)


class TwoHeads(Chain):
    """Returns what its loss does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x), self.second(x)


class Stochastic(Chain):
    """Leaves blocks out at random, each rank its own."""

    def __init__(self, dropped: float = 0.5) -> None:
        super().__init__()
        self.dropped = dropped

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            chance = torch.rand(())
            if chance < self.dropped:
                continue
            x = x + block(x)
        return self.head(x)


class Forked(Chain):
    """Takes the way that its samples decide."""

    def forward(self, x: torch.Tensor) -> Any:
        for first, second in zip(self.blocks[::2], self.blocks[1::2], strict=True):
            block = first if x.sum() > 0 else second
            x = x + block(x)
        return self.head(x)


class Halting(Chain):
    """Stops where its samples say so, on each rank by itself."""

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
            level = x.square().mean()
            if float(level) > 2 + x[0, 0]:
                break
        return self.head(x)


class Asking(Chain):
    """Asks for values, and calls the same blocks whatever they are."""

    def forward(self, x: torch.Tensor, mask: Any = None) -> Any:
        if mask is not None and (mask == 0).any():
            x = x.masked_fill(mask == 0, 0.0)
        for block in self.blocks:
            if float(self.head.weight.shape[0]) > 0:
                x = x + block(x)
        return self.head(x)


class Transposed(Chain):
    """Holds a weight that is not laid out in rows."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH)[:, ::2])

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x @ self.mix)


class OfOneLength(Chain):
    """Adds positions to sequences of one length alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.positions = nn.Parameter(torch.randn(1, 12, WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(self.embed(x) + self.positions).mean(1)


class Shared(nn.Module):
    """Calls one block four times, and lists it as often."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([residual()] * 4)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class SharedPart(Chain):
    """Has blocks of their own that share one part, as tied feed-forward layers."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks[1:]:
            block[0] = self.blocks[0][0]


class FirstValues(nn.Module):
    """Every block reads the values of the first, beside its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mixing() for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        first = None
        for block in self.blocks:
            x, first = block(x, first)
        return self.head(x)


class Mixing(nn.Module):
    """A block that hands on what it was given, or its own."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.out, self.ff = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), residual()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, first: torch.Tensor | None) -> Any:
        value = self.value(x) * self.scale
        first = value if first is None else first
        x = x + self.out((value + first).relu())
        return x + self.ff(x), first


class Following(Chain):
    """Divides by a value that follows the samples: a codebook, or a norm of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Followed() for _ in range(4))


class Followed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))
        self.register_buffer("mask", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.scale.lerp_(x.square().mean(0).sqrt(), 0.3)
        return self.layer(x / self.scale) * self.mask


class Checkpointed(Chain):
    """Checkpoints its blocks by itself, the old way."""

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + checkpoint(block, x.requires_grad_(), use_reentrant=True)
        return self.head(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "answering": Answering,
    "naming": Naming,
    "secretive": Secretive,
    "leftover": Leftover,
    "two heads": TwoHeads,
    "stochastic": Stochastic,
    "transposed": Transposed,
    "of one length": OfOneLength,
    "shared": Shared,
    "shared part": SharedPart,
    "checkpointed": Checkpointed,
    "first values": FirstValues,
    "following": Following,
}


def loss_of(output: Any, targets: torch.Tensor) -> torch.Tensor:
    if isinstance(output, Answer):
        return functional.cross_entropy(output.logits, targets) + output.parts["penalty"]
    if isinstance(output, SimpleNamespace | Sealed):
        output = output.logits
    return functional.cross_entropy(output[0] if isinstance(output, tuple) else output, targets)


def batch(name: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, WIDTH, generator=draw)
    if name in {"of one length", "naming", "secretive"}:
        x = torch.randint(11, (SAMPLES, 12), generator=draw)
    return x, torch.randint(CLASSES, (SAMPLES,), generator=draw)


def trained(name: str, fields: dict[str, Any], *, plain: bool = False) -> list[float] | str:
    """Losses of a few steps, or why there are none; ``plain``: a loop with a bare ``loss.backward()``."""
    torch.manual_seed(0)
    pipelined = "pp" in fields
    chosen = plan(
        **{"micro_batch_size": 2 if pipelined else SAMPLES // fields.get("dp_replicate", 1), **fields}
    )
    try:
        model = parastrat.auto_parallelize(MODELS[name](), plan=chosen, sample_inputs=batch(name, 0)[0])
        return losses(model, name, plain=plain)
    except ParastratError as error:
        return error.message


def losses(model: nn.Module, name: str, *, plain: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    found = []
    for step in range(STEPS):
        # every rank has the same samples
        x, y = batch(name, step)
        if plain:
            loss = loss_of(model(x), y)
            loss.backward()
        else:
            loss = parastrat.forward_backward(model, x, y, loss_fn=loss_of)
        found.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return found


DDP: dict[str, Any] = {"dp_replicate": 2, "micro_batch_size": SAMPLES}
FSDP2: dict[str, Any] = {"dp_shard": 2, "micro_batch_size": SAMPLES}
PP: dict[str, Any] = {**ONE_F_ONE_B, "gradient_accumulation_steps": 2}
CELLS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "answering ddp": ("answering", DDP, False),
    "answering pp": ("answering", PP, False),
    "answering tp": ("answering", {"tp": 2}, False),
    "naming fsdp2": ("naming", FSDP2, False),
    "naming ddp plain": ("naming", DDP, True),
    "secretive fsdp2": ("secretive", FSDP2, False),
    "secretive pp": ("secretive", PP, False),
    "leftover ddp": ("leftover", DDP, False),
    "leftover ddp plain": ("leftover", DDP, True),
    "two heads ddp": ("two heads", DDP, False),
    "two heads ddp plain": ("two heads", DDP, True),
    "stochastic ddp": ("stochastic", DDP, True),
    "stochastic fsdp2": ("stochastic", FSDP2, True),
    "transposed fsdp2": ("transposed", FSDP2, False),
    "of one length tp": ("of one length", {"tp": 2}, False),
    "shared tp": ("shared", {"tp": 2}, False),
    "shared part fsdp2": ("shared part", FSDP2, False),
    "first values tp": ("first values", {"tp": 2}, False),
    "following pp": ("following", PP, False),
    "following pp recomputed": ("following", {**PP, "recompute": Recompute.FULL}, False),
    "checkpointed pp": ("checkpointed", PP, False),
}


ON_RELEASES = {"answering tp": exports_dataclasses}
APART = ("two heads ddp plain", "stochastic ddp", "stochastic fsdp2", "secretive fsdp2", "secretive pp")


def on_two() -> dict[str, list[float] | str]:
    return {cell: trained(name, fields, plain=plain) for cell, (name, fields, plain) in CELLS.items()}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return on_ranks(2, on_two)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=ON_RELEASES.get(cell, ())) for cell in CELLS if cell not in APART]
)
def test_losses_are_those_of_one_process(cell: str, two: list[dict[str, Any]]) -> None:
    name, _, _ = CELLS[cell]
    # statistics follow each micro-batch
    alike = {"micro_batch_size": 2, "gradient_accumulation_steps": 2} if name == "following" else {}
    expected = trained(name, alike)
    for rank in two:
        assert rank[cell] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("policy", [Recompute.SELECTIVE, Recompute.FULL])
def test_buffers_change_once_where_a_forward_is_computed_again(policy: Recompute) -> None:
    shape: dict[str, Any] = {"micro_batch_size": 2, "gradient_accumulation_steps": 2}
    assert trained("following", {**shape, "recompute": policy}) == pytest.approx(
        trained("following", shape)
    )


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["stochastic ddp", pytest.param("stochastic fsdp2", marks=reduces_unused)])
def test_no_rank_waits_for_a_block_that_another_left_out(cell: str, two: list[dict[str, Any]]) -> None:
    assert [len(rank[cell]) for rank in two] == [STEPS, STEPS]


@pytest.mark.slow
def test_a_plain_loop_is_told_what_its_loss_leaves_out(two: list[dict[str, Any]]) -> None:
    assert all("did not reach second.weight" in rank["two heads ddp plain"] for rank in two)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["secretive fsdp2", "secretive pp"])
def test_an_output_without_a_tensor_in_it_is_refused(cell: str, two: list[dict[str, Any]]) -> None:
    assert all("returns Sealed, in which no tensor was found" in rank[cell] for rank in two)


def fails_in_the_last_stage() -> tuple[str, str]:
    """Return the class and the words of what a rank raises where the loss of the last stage fails."""
    model = parastrat.auto_parallelize(
        Chain(), plan=plan(**{**PP, "micro_batch_size": 2}), sample_inputs=batch("", 0)[0]
    )
    try:
        parastrat.forward_backward(model, *batch("", 0), loss_fn=failing)
    except (ArithmeticError, ParastratError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return "", ""


def failing(_output: Any, _targets: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError("no targets")


@pytest.mark.slow
def test_a_stage_says_what_is_wrong_in_its_own_words_and_the_others_who_failed() -> None:
    first, last = on_ranks(2, fails_in_the_last_stage)
    assert last == ("ZeroDivisionError", "no targets")
    assert first[0] == "MismatchError"
    assert first[1].startswith("rank 1 stopped with ZeroDivisionError: no targets")


class Fussy(nn.Module):
    """A block that takes nothing once it is told so."""

    takes_nothing = False

    def __init__(self) -> None:
        super().__init__()
        self.inside = residual()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.takes_nothing:
            raise ValueError("a fussy block")
        return self.inside(x)


class FussyChain(Chain):
    """Its blocks may fail on one rank alone."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Fussy() for _ in range(4))


def goes_on_behind_a_failure(place: int) -> tuple[str, float]:
    """Return what a rank raises where one rank's stage fails, and the loss of a step that it takes then."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {**PP, "dp_replicate": 2, "micro_batch_size": 2}
    model = parastrat.auto_parallelize(FussyChain(), plan=plan(**shape), sample_inputs=batch("", 0)[0])
    for block in model.modules():
        if isinstance(block, Fussy):
            block.takes_nothing = dist.get_rank() == place
    said = ""
    try:
        parastrat.forward_backward(model, *batch("", 0), loss_fn=functional.cross_entropy)
    except (ValueError, ParastratError) as error:
        said = f"{type(error).__name__}: {error}"
    for block in model.modules():
        if isinstance(block, Fussy):
            block.takes_nothing = False
    return said, parastrat.forward_backward(model, *batch("", 0), loss_fn=functional.cross_entropy).item()


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 3])
def test_no_stage_waits_for_one_that_fails_and_goes_on(place: int) -> None:
    torch.manual_seed(0)
    model = FussyChain()
    x, y = batch("", 0)
    expected = functional.cross_entropy(model(x), y).item()
    for rank, (said, loss) in enumerate(on_ranks(4, goes_on_behind_a_failure, place)):
        assert said == (
            "ValueError: a fussy block"
            if rank == place
            else f"MismatchError: rank {place} stopped with ValueError: a fussy block"
        )
        assert loss == pytest.approx(expected, rel=1e-5)


def names_held() -> list[str]:
    """Return the names of this rank's state where nothing calls a block of one of its two stages."""
    several: dict[str, Any] = {"pp_schedule": PipelineSchedule.INTERLEAVED, "virtual_stages": 2}
    chosen = plan(**(PP | several | {"micro_batch_size": 2}))
    model = parastrat.auto_parallelize(Leftover(), plan=chosen, sample_inputs=batch("", 0)[0])
    return list(model.state_dict())


@pytest.mark.slow
def test_stages_keep_what_nothing_calls() -> None:
    first, second = on_ranks(2, names_held)
    assert sorted(first + second) == sorted(Leftover().state_dict())


def test_tensors_are_found_in_what_people_return() -> None:
    a, b, c = (torch.zeros(size) for size in (1, 2, 3))

    class Names(dict[str, Any]):
        pass

    cyclic: list[Any] = [a]
    cyclic.append(SimpleNamespace(ignored=b))
    for output in (
        Answer(a, {"rest": (b, [c])}),
        Names(first=a, second=[Answer(b, {"third": c})]),
        SimpleNamespace(logits=a, others=(b, c), said="x"),
        [a, {"b": b}, c, None, 3],
    ):
        assert [tuple(tensor.shape) for tensor in tensors_in(output)] == [(1,), (2,), (3,)]
    assert [tuple(tensor.shape) for tensor in tensors_in(cyclic)] == [(1,)]  # objects inside are left alone


def test_a_graph_tells_what_it_reaches_unless_it_hides_some() -> None:
    model = Leftover()
    reached = reached_from([model(torch.zeros(1, WIDTH))])
    assert reached == {*model.head.parameters(), *model.blocks[:-1].parameters()}
    x = torch.zeros(1, WIDTH, requires_grad=True)
    hidden = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True)
    assert reached_from([hidden]) is None


def test_ways_that_hang_on_draws_and_values_are_seen() -> None:
    assert drawn_ways(nn.Sequential(Chain(), Stochastic())) == ["1"]
    assert chooses_ways(Forked())
    assert not drawn_ways(Forked())
    for model in (Forked(), Halting()):
        assert not outside_of(model, {"blocks.0": model.blocks[0]})
        assert chooses_ways(model)
    asking = Asking()
    assert outside_of(asking, {"blocks.0": asking.blocks[0]})
    for still in (Stochastic(0.0), Leftover(), Prenormed(), nn.Sequential(nn.Dropout(0.5), nn.LSTM(2, 2))):
        assert not chooses_ways(still)


def test_hooks_on_gradients_are_not_lost_in_silence() -> None:
    model = Chain()
    check_gradients(model, plan(dp_shard=2))
    model.head.weight.register_hook(lambda gradient: gradient * 2)
    check_gradients(model, plan(dp_replicate=2))
    for axis in ("dp_shard", "tp"):
        with pytest.raises(WrapError, match=r"head\.weight has a hook on its gradient"):
            check_gradients(model, plan(**{axis: 2}))


def test_sparse_gradients_are_refused_where_they_cannot_be_divided() -> None:
    model = nn.Sequential(nn.EmbeddingBag(4, 4, sparse=True))
    check_gradients(model, plan(dp_replicate=2))
    with pytest.raises(WrapError, match="0 makes sparse gradients"):
        check_gradients(model, plan(dp_shard=2))


def test_what_no_loss_reaches_has_no_optimizer_state_before_or_after(tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = parastrat.auto_parallelize(Leftover(), plan=plan(micro_batch_size=SAMPLES))
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = made()
    parastrat.forward_backward(model, *batch("", 0), loss_fn=loss_of)
    optimizer.step()
    parastrat.save_checkpoint(model, optimizer, tmp_path)
    for others in ((model, optimizer), made()):
        parastrat.load_checkpoint(*others, tmp_path)
        states = {
            name: others[1].state[p] for name, p in others[0].named_parameters() if p in others[1].state
        }
        assert set(states) == {name for name, p in model.named_parameters() if p.grad is not None}
        assert float(states["head.weight"]["step"]) == 1
        torch.testing.assert_close(
            states["head.weight"]["exp_avg"], optimizer.state[model.head.weight]["exp_avg"]
        )


class Shifting(nn.Module):
    """Predicts the next token, by its own code."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class WrappedForCausalLM(Chain):
    """Has the name of those that shift, and does not."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class OddForCausalLM(Chain):
    """Leaves its loss to a function elsewhere."""


def test_targets_are_counted_as_a_models_own_loss_takes_them() -> None:
    labels = torch.tensor([[1, 2, 3], [-100, -100, 4]])
    for model, count in ((Shifting(), 3), (WrappedForCausalLM(), 4), (OddForCausalLM(), 3), (Chain(), 4)):
        for key in ("labels", "targets"):
            assert counted(model, {"x": labels, key: labels}, None, None) == count
    assert counted(Shifting(), {"x": labels}, labels, 4) == 5
    assert counted(Shifting(), {"x": labels}, None, None) == 2


def test_constants_are_not_written_to_while_a_pipelines_backward_is_pending() -> None:
    model = Chain()
    model.register_buffer("mask", torch.ones(2))
    model.register_buffer("angles", torch.ones(2), persistent=False)
    model.register_buffer("counts", torch.zeros(2))
    values = torch.cat([model.mask, model.angles, torch.ones(2)])
    group = SimpleNamespace(pp=object(), from_first=lambda message: message.copy_(values))
    versions = model.mask._version, model.angles._version
    _send(model, group)
    assert (model.mask._version, model.angles._version) == versions
    assert model.counts.tolist() == [1, 1]


def test_an_output_without_a_loss_is_named() -> None:
    model = parastrat.auto_parallelize(TwoHeads(), plan=plan(micro_batch_size=SAMPLES))
    with pytest.raises(UsageError, match="the model returned tuple without a loss"):
        parastrat.forward_backward(model, torch.zeros(SAMPLES, WIDTH))


def test_a_forward_of_several_formats_is_told_of_the_plans() -> None:
    class Mixed(Chain):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x.bfloat16())

    model = parastrat.auto_parallelize(Mixed().bfloat16(), plan=plan(micro_batch_size=SAMPLES))
    with pytest.raises(
        WrapError, match=r"18 parameters such as blocks\.0\.0\.weight were cast to the plan's fp32"
    ):
        parastrat.forward_backward(model, *batch("", 0), loss_fn=loss_of)


class Biased(Chain):
    """Adds a constant that stays in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(WIDTH), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x + self.shift)


def in_short_formats() -> str:
    shape: dict[str, Any] = {"dp_shard": 2, "precision": Precision.BF16_MIXED, "micro_batch_size": SAMPLES}
    model = parastrat.auto_parallelize(Biased(), plan=plan(**shape))
    try:
        parastrat.forward_backward(model, *batch("", 0), loss_fn=loss_of)
    except WrapError as error:
        return error.message
    return ""


@pytest.mark.slow
def test_a_constant_that_fsdp2_leaves_in_fp32_is_told() -> None:
    for said in on_ranks(2, in_short_formats):
        assert said.startswith("FSDP2 gathers weights in torch.bfloat16 under bf16-mixed")


def test_tensors_that_a_forward_left_behind_are_no_obstacle() -> None:
    model = Chain()
    model.seen = {"last": model(torch.zeros(1, WIDTH))}
    assert without_data(model).seen["last"].is_meta
    source = Source(module=model, sample_inputs=None, record=None, device=torch.device("cpu"))
    assert next(small_copies(source, 2)).seen["last"].is_leaf


def test_complex_weights_stay_complex_in_a_small_copy() -> None:
    model = Chain()
    model.waves = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    source = Source(module=model, sample_inputs=None, record=None, device=torch.device("cpu"))
    assert next(small_copies(source, 2)).waves.is_complex()


def test_a_block_that_is_listed_several_times_has_one_name() -> None:
    (group, *_) = derived_layout(Shared(), torch.randn(2, WIDTH), 2).groups
    assert list(group.parts) == ["blocks.0.0", "blocks.0.2"]
