"""Plain values that stand for divided weights through a step: gradients are those of the weights."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan, token_loss, tokens
from runtime.ranks import on_ranks
from runtime.tensor_parallel.models import Tiny
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.testing._internal.distributed.fake_pg import FakeStore

import parastrat
from parastrat.runtime.communication import flow
from parastrat.runtime.tensor_parallel import own_values
from parastrat.runtime.wrapping import wrapping_of

pytestmark = pytest.mark.slow

Gradients = dict[str, torch.Tensor]


def wrapped(dp_shard: int = 1) -> nn.Module:
    torch.manual_seed(3)
    settled = plan(tp=2, dp_shard=dp_shard, gradient_accumulation_steps=2)
    return parastrat.auto_parallelize(Tiny, plan=settled)


def step(model: nn.Module, index: int) -> None:
    parastrat.forward_backward(model, *tokens(index, 4, vocab=64), loss_fn=token_loss)


def gradients(model: nn.Module) -> Gradients:
    held = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(isinstance(gradient, DTensor) for gradient in held.values())
    return {name: gradient.full_tensor().clone() for name, gradient in held.items()}


def with_leaves_and_without(dp_shard: int = 1) -> tuple[Gradients, Gradients, bool]:
    """Two steps' gradients added up, with leaves and by the weights themselves."""
    found = []
    for leaves in (True, False):
        model = wrapped(dp_shard)
        assert wrapping_of(model).leaves is not None
        if not leaves:
            wrapping_of(model).leaves = None
        step(model, 0)
        step(model, 1)
        found.append(gradients(model))
    return found[0], found[1], own_values.Leaves.running is None


def seen_by_hooks() -> tuple[Gradients, dict[str, int], int]:
    """Gradients where two weights have hooks: one of them doubles what it sees, the other counts."""
    model, calls = wrapped(), {"doubled": 0, "counted": 0}
    first, last = list(model.parameters())[1:3]

    def doubled(gradient: torch.Tensor) -> torch.Tensor:
        calls["doubled"] += 1
        return gradient * 2

    def counted(parameter: torch.Tensor) -> None:
        calls["counted"] += parameter.grad is not None

    first.register_hook(doubled)
    last.register_post_accumulate_grad_hook(counted)
    step(model, 0)
    step(model, 1)
    return gradients(model), calls, 1


def after_an_error() -> bool:
    """Whether nothing of a step that raised is left behind."""
    model = wrapped()

    def broken(*_: Any) -> torch.Tensor:
        raise ValueError("a loss")

    with pytest.raises(ValueError, match="a loss"):
        parastrat.forward_backward(model, *tokens(0, 4, vocab=64), loss_fn=broken)
    return own_values.Leaves.running is None


class Recurrent(nn.Module):
    """Its middle keeps a list of its weights, and makes it anew where one is not the tensor that it was."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.LSTM(32, 32, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(x))[0])  # type: ignore[no-any-return]


def losses_of_recurrent() -> list[float]:
    torch.manual_seed(3)
    model = parastrat.auto_parallelize(
        Recurrent(), plan=plan(tp=2, dp_shard=2), sample_inputs=tokens(0, 1, vocab=64)[0]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(3):
        losses.append(parastrat.forward_backward(model, *tokens(0, 2, vocab=64), loss_fn=token_loss).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def gathered() -> dict[str, Any]:
    """What leaves of gathered weights do from step to step, and what they hold behind one."""
    model = wrapped(2)
    leaves = wrapping_of(model).leaves
    assert isinstance(leaves, own_values.GatheredLeaves)
    kept, held = [], []
    for index in range(2):
        step(model, index)
        kept.append({place: id(leaf) for place, (_, _, leaf) in leaves._gathered.items()})
        held += [leaf.grad for _, _, leaf in leaves._gathered.values()]
        held += [parameter.grad for parameter, _, _ in leaves._gathered.values()]
    return {
        "both": with_leaves_and_without(2),
        "same": kept[0] == kept[1],
        "held": [each for each in held if each is not None],
        "stood for": len(kept[0]),
        "weights": len(list(model.parameters())),
        "recurrent": losses_of_recurrent(),
    }


class Summed(nn.Module):
    """Adds up weights of one shape before anything else reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.several = nn.ParameterList([torch.full((32,), 0.1 * place) for place in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x) + sum(self.several))  # type: ignore[no-any-return]


def of_summed() -> list[list[float]]:
    """Gradients of the weights that are added up, once all gradients are doubled in place."""
    torch.manual_seed(3)
    plain = Summed()
    model = parastrat.auto_parallelize(
        copy.deepcopy(plain), plan=plan(tp=2), sample_inputs=tokens(0, 1, vocab=64)[0]
    )
    x, y = tokens(0, 2, vocab=64)
    found = []
    for each in (plain, model):
        token_loss(each(x), y).backward()
        for parameter in each.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(2)
        own = [parameter.grad for parameter in each.several.parameters()]
        found.append(torch.cat([g.full_tensor() if isinstance(g, DTensor) else g for g in own]).tolist())
    return found


def met_by_dtensors() -> dict[str, Any]:
    """The gradients of a whole weight and of a divided one, whose values met DTensors."""
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    found: dict[str, Any] = {}
    for name, layout in (("whole", Replicate()), ("divided", Shard(0))):
        weight = nn.Parameter(distribute_tensor(torch.ones(2), mesh, [layout]))
        try:
            with implicit_replication():
                (x * own_values.own_values(weight)).sum().backward()
        except RuntimeError as error:
            found[name] = str(error)
            continue
        assert isinstance(weight.grad, DTensor)
        found[name] = type(weight.grad.to_local()), weight.grad.full_tensor()
    return found


def on_two() -> dict[str, Any]:
    return {
        "both": with_leaves_and_without(),
        "hooks": seen_by_hooks(),
        "error": after_an_error(),
        "met": met_by_dtensors(),
        "summed": of_summed(),
    }


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return on_ranks(2, on_two)[0]  # type: ignore[no-any-return]


def test_gradients_are_those_of_the_weights(found: dict[str, Any]) -> None:
    with_leaves, without, over = found["both"]
    assert over
    for name, expected in without.items():
        assert torch.allclose(with_leaves[name], expected, rtol=1e-6, atol=1e-8), name


@pytest.fixture(scope="module")
def of_gathered() -> dict[str, Any]:
    return on_ranks(4, gathered)[0]  # type: ignore[no-any-return]


def test_gradients_of_gathered_weights_are_those_of_the_weights(of_gathered: dict[str, Any]) -> None:
    with_leaves, without, over = of_gathered["both"]
    assert over
    for name, expected in without.items():
        assert torch.allclose(with_leaves[name], expected, rtol=1e-6, atol=1e-8), name


def test_layers_that_keep_a_list_of_their_weights_see_new_ones(of_gathered: dict[str, Any]) -> None:
    first, second, third = of_gathered["recurrent"]
    assert first > second > third


def test_leaves_of_gathered_weights_stay_and_hold_no_gradients(of_gathered: dict[str, Any]) -> None:
    # some weights are added up by themselves, as what is whole on every rank
    assert of_gathered["stood for"] > of_gathered["weights"] / 2
    assert of_gathered["same"]
    assert not of_gathered["held"]


def test_a_whole_weight_that_meets_dtensors_has_a_plain_gradient(
    found: dict[str, Any],
) -> None:
    kind, gradient = found["met"]["whole"]
    assert kind is torch.Tensor
    assert gradient.tolist() == [12.0, 16.0]


def test_a_share_of_a_weight_does_not_meet_what_knows_the_whole(found: dict[str, Any]) -> None:
    assert found["met"]["divided"] == "a share of a weight met activations that know the whole"


def test_hooks_of_weights_see_their_gradients(found: dict[str, Any]) -> None:
    _, without, _ = found["both"]
    seen, calls, place = found["hooks"]
    micro_batches = 4
    assert calls["doubled"] == calls["counted"] == micro_batches
    for index, (name, expected) in enumerate(without.items()):
        times = 2 if index == place else 1
        assert torch.allclose(seen[name], times * expected, rtol=1e-6, atol=1e-8), name


def test_no_two_weights_have_one_gradient(found: dict[str, Any]) -> None:
    plain, divided = found["summed"]
    assert divided == pytest.approx(plain, rel=1e-5)


def test_a_step_that_raises_leaves_no_leaves(found: dict[str, Any]) -> None:
    assert found["error"]


def test_what_a_mesh_says_is_asked_once_and_goes_with_it() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        before = set(flow._known)
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        whole = flow.take(torch.arange(4.0), mesh, 0)
        assert whole.tolist() == [2.0, 3.0]
        assert len(set(flow._known) - before) == 1
        # a checkpoint holds the meshes of its tensors
        pickle.dumps(mesh)
        twin = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        flow.take(torch.arange(4.0), twin, 0)
        assert len(set(flow._known) - before) == 2
        del mesh, twin
        assert not set(flow._known) - before
    finally:
        dist.destroy_process_group()
