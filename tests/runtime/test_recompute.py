"""What backward computes again under each policy, counted; names and results unchanged."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Gpt, plan, token_loss, tokens
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import Compile, Recompute

LAYERS = 2
#: linear layers in the blocks; the head has no bias and is outside
LINEARS = 4 * LAYERS


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.name().partition(".")[0].removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def calls_of_a_step(policy: Recompute) -> tuple[int, int, int]:
    """Calls of the attention core's forward, the linear layers' forwards, and GELU's."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Gpt(layers=LAYERS), plan=plan(recompute=policy))
    inputs, targets = tokens(0, 2)
    with Counted() as counted:
        token_loss(model(inputs), targets).backward()
    attention = counted.calls["_scaled_dot_product_flash_attention_for_cpu"]
    return attention, counted.calls["addmm"], counted.calls["gelu"]


@pytest.mark.parametrize(
    ("policy", "attention", "linears", "gelus"),
    [
        (Recompute.NONE, LAYERS, LINEARS, LAYERS),
        # torch stops before a block's last linear layer, whose output nothing needs
        (Recompute.FULL, 2 * LAYERS, 2 * LINEARS - LAYERS, 2 * LAYERS),
        # kept: attention, and the first and third of four linear layers
        (Recompute.SELECTIVE, LAYERS, LINEARS + LAYERS, 2 * LAYERS),
        (Recompute.ATTENTION, 2 * LAYERS, LINEARS, LAYERS),
    ],
)
def test_recomputes_what_the_policy_says(
    policy: Recompute, attention: int, linears: int, gelus: int
) -> None:
    assert calls_of_a_step(policy) == (attention, linears, gelus)


@pytest.mark.parametrize("policy", Recompute)
def test_keys_and_gradients_stay(policy: Recompute) -> None:
    torch.manual_seed(0)
    plain = Gpt()
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Gpt(), plan=plan(recompute=policy))
    assert list(model.state_dict()) == list(plain.state_dict())
    inputs, targets = tokens(0, 2)
    for module in (plain, model):
        token_loss(module(inputs), targets).backward()
    for (name, one), other in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-6), name


@pytest.mark.parametrize("policy", Recompute)
def test_caches_of_hugging_face_models_are_not_filled_twice(policy: Recompute) -> None:
    from runtime.training import llama

    torch.manual_seed(0)
    plain = llama()
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(llama(), plan=plan(recompute=policy))
    inputs, _ = tokens(0, 2)
    losses = [module(input_ids=inputs, labels=inputs).loss for module in (plain, model)]
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
    for (name, one), other in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-6), name


def test_attention_that_no_checkpoint_sees_is_refused() -> None:
    layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)]
    model = parastrat.auto_parallelize(nn.Sequential(*layers), plan=plan(recompute=Recompute.ATTENTION))
    with pytest.raises(WrapError, match="no block calls scaled_dot_product_attention"):
        model(torch.zeros(1, 3, 16))


def compiled_by(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))


def kept_for_backward(policy: Recompute) -> int:
    """Bytes that compiled blocks keep, and what is around them."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(
        Gpt(layers=LAYERS), plan=plan(recompute=policy, compile=Compile.BLOCK)
    )
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens(0, 2)[0])
    return sum(kept.values())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_blocks_keep_what_the_policy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_by("aot_eager", monkeypatch)
    kept = {policy: kept_for_backward(policy) for policy in set(Recompute) - {Recompute.ATTENTION}}
    # half of the linear layers' outputs, and attention's, stay
    assert 2 * kept[Recompute.FULL] < kept[Recompute.SELECTIVE] < 0.6 * kept[Recompute.NONE], kept


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_where_a_graph_breaks_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return super().forward(x)

    compiled_by("eager", monkeypatch)
    model = nn.Sequential(Breaking(4, 4), Breaking(4, 4))
    chosen = plan(recompute=Recompute.SELECTIVE, compile=Compile.BLOCK)
    with pytest.warns(UserWarning, match="blocks run uncompiled: where its graph breaks"):
        parastrat.auto_parallelize(model, plan=chosen)(torch.randn(3, 4)).sum().backward()


class Moving(nn.Module):
    """Counts its calls, and keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return torch.relu(self.norm(self.linear(x)))


def moved(policy: Recompute, compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    torch.manual_seed(0)
    compiled_by("aot_eager", monkeypatch)
    model = parastrat.auto_parallelize(
        nn.Sequential(Moving(), Moving()), plan=plan(recompute=policy, compile=compiled)
    )
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
    return [float(buffer.float().sum()) for buffer in model.buffers()]


# a compiler looks whether what a graph is given has gradients
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_buffers_of_compiled_blocks_change_once(monkeypatch: pytest.MonkeyPatch) -> None:
    moved_once = moved(Recompute.NONE, Compile.NONE, monkeypatch)
    assert moved_once.count(2.0) == 4, moved_once
    for policy in (Recompute.FULL, Recompute.SELECTIVE):
        assert moved(policy, Compile.BLOCK, monkeypatch) == pytest.approx(moved_once), policy


def test_every_block_is_compiled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Gpt(layers=3)
    forwards = [layer.forward.__func__ for layer in plain.layers]
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda forward: compiled.append(forward) or forward)
    parastrat.auto_parallelize(plain, plan=plan(compile=Compile.BLOCK))
    # equal blocks have one function, and so one graph
    assert compiled == forwards
