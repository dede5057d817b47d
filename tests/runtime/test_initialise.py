"""First weights of models that were built on the meta device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from runtime.models import Gpt, plan
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import parastrat
from parastrat.errors import ModelError, WrapError


def built(build: object, **keywords: object) -> nn.Module:
    torch.manual_seed(0)
    return parastrat.auto_parallelize(build, plan=plan(), **keywords)  # type: ignore[arg-type]


class Holder(nn.Module):
    """A linear layer and whatever a test adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


def test_values_follow_the_seed_and_not_each_other() -> None:
    first, again = built(Gpt), built(Gpt)
    for (name, one), other in zip(first.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert not torch.equal(first.layers[0].qkv.weight, first.layers[1].qkv.weight)


class Drawing(Holder):
    """Most who need a table of positions draw it in the constructor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 4))
        self.positions = nn.Parameter(0.02 * torch.randn(64, 64))
        self.register_buffer("noise", torch.rand(64) + 1)


def test_what_a_constructor_draws_is_drawn() -> None:
    model, again = built(Drawing), built(Drawing)
    assert model.positions.std().item() == pytest.approx(0.02, rel=0.1)
    assert 1 <= float(model.noise.min()) < float(model.noise.max()) < 2
    assert torch.equal(model.positions, again.positions)


def test_what_two_are_drawn_from_is_not_drawn_twice() -> None:
    class Twice(Holder):
        def __init__(self) -> None:
            super().__init__()
            drawn = torch.randn(8)
            self.first, self.second = nn.Parameter(drawn.clone()), nn.Parameter(drawn + 1)

    with pytest.raises(WrapError, match=r"first \(parameter\), second \(parameter\)"):
        built(Twice)


class Padded(Holder):
    """Its table gets other values, and another size, by ``.data``."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(3))
        self.table.data = nn.functional.pad(self.table.data, (0, 1), value=2.0)


def test_what_a_constructor_puts_in_the_place_of_data_is_made_again() -> None:
    assert built(Padded).table.tolist() == Padded().table.tolist() == [1, 1, 1, 2]


def test_two_models_of_one_seed_differ() -> None:
    first = built(Gpt)
    second = parastrat.auto_parallelize(Gpt, plan=plan())
    assert not torch.equal(first.embed.weight, second.embed.weight)


def test_ties_stay_ties() -> None:
    model = built(Gpt)
    assert model.head.weight is model.embed.weight


def test_initialisers_of_the_model_win_over_those_of_its_layers() -> None:
    """_init_weights: std 0.02; reset_parameters of an embedding: std 1."""
    model = built(Gpt)
    assert model.embed.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_what_the_constructor_writes_last_is_repeated() -> None:
    model = built(Gpt)
    assert model.layers[0].down.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert model.layers[0].up.weight.std().item() == pytest.approx(0.02, rel=0.1)


def adapted() -> nn.Module:
    """Return a model with adapters as LoRA adds them, which its initialiser does not know."""
    model = Gpt()
    for layer in model.layers:
        layer.first = nn.Linear(32, 4, bias=False)
        nn.init.kaiming_uniform_(layer.first.weight, a=2)
        layer.second = nn.Linear(4, 32, bias=False)
        nn.init.zeros_(layer.second.weight)
        layer.scale = nn.Parameter(torch.ones(4))
        layer.scale.data.mul_(3)
    return model


def test_adapters_begin_as_their_constructor_says() -> None:
    """Their second factor is zero, so that the model is what it was; _init_weights would draw it."""
    model, real = built(adapted), adapted()
    for layer, expected in zip(model.layers, real.layers, strict=True):
        assert not layer.second.weight.any()
        assert layer.first.weight.std().item() == pytest.approx(expected.first.weight.std().item(), rel=0.3)
        assert torch.equal(layer.scale, torch.full((4,), 3.0))
        assert layer.up.weight.std().item() == pytest.approx(0.02, rel=0.1)


class Tied(nn.Module):
    """An embedding and a head of one weight, which is the one's or the other's."""

    def __init__(self, *, heads: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.head = nn.Linear(64, 100, bias=False)
        if heads:
            self.embed.weight = self.head.weight
        else:
            self.head.weight = self.embed.weight


@pytest.mark.parametrize("heads", [True, False])
def test_a_tied_weight_begins_as_the_layer_that_it_came_from(*, heads: bool) -> None:
    model, real = built(lambda: Tied(heads=heads)), Tied(heads=heads)
    assert model.head.weight is model.embed.weight
    assert model.embed.weight.std().item() == pytest.approx(real.embed.weight.std().item(), rel=0.1)


class Initialised(Holder):
    """By functions of torch's that do nothing on the meta device, or write to what they are handed."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(64, 64))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.projection = nn.Linear(64, 64)
        nn.init.trunc_normal_(self.projection.weight, std=0.5, a=-1, b=1)
        self.turned, self.thin = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        nn.init.orthogonal_(self.turned.weight, gain=2)
        nn.init.sparse_(self.thin.weight, sparsity=0.5)
        self.kept, self.same = nn.Conv1d(4, 4, 3), nn.Linear(8, 8)
        nn.init.dirac_(self.kept.weight)
        nn.init.eye_(self.same.weight)


def test_initialisers_that_do_nothing_on_the_meta_device_are_run() -> None:
    model, real = built(Initialised), Initialised()
    assert model.positions.std().item() == pytest.approx(0.02, rel=0.1)
    weight = model.projection.weight
    assert weight.std().item() == pytest.approx(real.projection.weight.std().item(), rel=0.1)
    assert float(weight.detach().abs().max()) <= 1
    turned = model.turned.weight.detach()
    torch.testing.assert_close(turned @ turned.T, 4 * torch.eye(16))
    assert (model.thin.weight == 0).sum(0).tolist() == [8] * 16
    assert torch.equal(model.kept.weight, real.kept.weight)
    assert torch.equal(model.same.weight, torch.eye(8))


def test_a_constructor_may_ask_for_values_that_it_states() -> None:
    """As for rates that grow with the depth; not for those that it draws."""

    class Dropping(nn.Module):
        def __init__(self, *, drawn: bool = False) -> None:
            super().__init__()
            rates = torch.rand(3) if drawn else torch.linspace(0, 0.1, 3)
            self.layers = nn.ModuleList(nn.Dropout(rate.item()) for rate in rates)
            self.listed = torch.linspace(0, 1, 3).tolist()
            self.weight = nn.Parameter(torch.ones(2) * float(torch.arange(4).sum()))

    model, real = built(Dropping), Dropping()
    assert [layer.p for layer in model.layers] == [layer.p for layer in real.layers]
    assert model.listed == real.listed
    assert model.weight.tolist() == [6, 6]
    with pytest.raises(ModelError, match="cannot be built on the meta device"):
        built(lambda: Dropping(drawn=True))


def test_resets_that_no_constructor_calls_give_values() -> None:
    class Deferred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.empty(4)), nn.Parameter(torch.zeros(4))

        def reset_parameters(self) -> None:
            nn.init.ones_(self.weight)
            nn.init.constant_(self.bias, 2.0)

    model = built(lambda: nn.Sequential(Deferred(), Deferred()))
    for part in model:
        assert part.weight.tolist() == [1] * 4
        assert part.bias.tolist() == [2] * 4


def test_what_a_layer_begins_with_gives_way_to_its_model() -> None:
    """As in transformers' ImageGPT, whose layers draw in their constructors."""

    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(32, 32))
            nn.init.normal_(self.weight)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Drawn() for _ in range(3))

        def _init_weights(self, module: nn.Module) -> None:
            if module is self:
                for parameter in self.parameters():
                    nn.init.normal_(parameter, std=0.01)

    model = built(Model)
    for layer in model.layers:
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.1)


def test_a_bias_that_stands_for_a_layers_own_begins_as_itself() -> None:
    """As that of transformers' prediction heads."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.bias = nn.Parameter(torch.zeros(4))
            self.linear.bias = self.bias

    assert built(Head).bias.tolist() == [0.0] * 4


def test_blocks_are_initialised_by_what_is_around_them() -> None:
    """As detection heads begin at zero by their model's initialiser."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Holder() for _ in range(3))

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight)
            if isinstance(module, Around):
                for layer in module.layers:
                    nn.init.zeros_(layer.linear.bias)
                    nn.init.ones_(layer.linear.weight)

    model = built(Around)
    assert all(bool((layer.linear.weight == 1).all()) for layer in model.layers)
    assert not any(layer.linear.bias.any() for layer in model.layers)


def test_what_one_block_begins_with_of_another_is_refused() -> None:
    class Copied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Holder() for _ in range(3))
            self.last = nn.Linear(4, 4)

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, Copied):
                module.layers[1].linear.weight.copy_(module.last.weight)

    with pytest.raises(WrapError, match="Copied sets weights of one block from those of another"):
        built(Copied)


def test_init_weights_of_the_whole_model_reaches_every_block() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Holder() for _ in range(3))

        def init_weights(self) -> None:
            for index, layer in enumerate(self.layers):
                nn.init.constant_(layer.linear.weight, float(index))
                nn.init.zeros_(layer.linear.bias)

    model = built(Stack)
    assert [layer.linear.weight.mean().item() for layer in model.layers] == [0.0, 1.0, 2.0]


def test_constants_come_from_the_constructor() -> None:
    class Scaled(Holder):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((4,), 0.5))
            rates = 1.0 / 10_000 ** (torch.arange(0, 8, 2).float() / 8)
            self.register_buffer("rates", rates, persistent=False)
            self.register_buffer(
                "mask", torch.tril(torch.ones(3, 3)).bool().view(1, 3, 3), persistent=False
            )
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    model, real = built(Scaled), Scaled()
    assert torch.equal(model.scale, real.scale)
    assert torch.equal(model.rates, real.rates)
    assert torch.equal(model.mask, real.mask)
    assert model.seen.item() == 0


class Stated(Holder):
    """Tensors of values that the constructor states, and what it makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.6592))
        self.bounds = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])[:, 1])
        self.register_buffer("sums", torch.as_tensor(np.array([1.0, 2.0])).cumsum(0).float())
        steps = torch.tensor([3, 1, 2])
        steps[0] = 7
        self.register_buffer("steps", steps)
        places = torch.arange(4)
        places[1:3].zero_()
        self.register_buffer("places", places)
        allowed = torch.ones(3, dtype=torch.bool)
        allowed[:1].fill_(False)
        self.register_buffer("allowed", allowed)
        self.register_buffer("learned", torch.tensor([1.0, 2.0], requires_grad=True) * 2)


def test_values_that_a_constructor_states_are_those_of_the_real_one() -> None:
    held, expected = built(Stated).state_dict(), Stated().state_dict()
    for name in ("scale", "bounds", "sums", "steps", "places", "allowed", "learned"):
        assert torch.equal(held[name], expected[name]), name
        assert held[name].dtype == expected[name].dtype


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (lambda: nn.Parameter(torch.empty(4)), "parameter"),
        (lambda: nn.Parameter(torch.empty(4)[:2].view(2, 1)), "parameter"),
        (lambda: torch.empty(4), "buffer"),
        (lambda: torch.empty(4, dtype=torch.int64), "buffer"),
    ],
)
def test_what_nothing_initialises_is_named(values: object, kind: str) -> None:
    class Partial(Holder):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Module()
            made = values()  # type: ignore[operator]
            if kind == "parameter":
                self.inner.forgotten = made
            else:
                self.inner.register_buffer("forgotten", made, persistent=False)

    with pytest.raises(WrapError, match=rf"nothing initialises inner\.forgotten \({kind}\)"):
        built(Partial)


def test_half_initialised_is_not_initialised() -> None:
    class Half(Holder):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.empty(4, 2))

        def reset_parameters(self) -> None:
            nn.init.ones_(self.table[:2])

    with pytest.raises(WrapError, match="nothing initialises table"):
        built(Half)


def test_a_forgotten_parameter_in_a_block_is_named() -> None:
    class Layer(Holder):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.empty(4))

    with pytest.raises(WrapError, match=r"0\.gate \(parameter\), 1\.gate \(parameter\)"):
        built(lambda: nn.Sequential(Layer(), Layer()))


def test_real_buffers_of_a_meta_model_are_kept() -> None:
    class Table(Holder):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(3, device="cpu"), persistent=False)

    assert built(Table).table.tolist() == [1.0, 1.0, 1.0]


def test_attributes_of_parameters_are_kept() -> None:
    class Marked(Holder):
        def __init__(self) -> None:
            super().__init__()
            self.linear.weight.no_decay = True
            self.linear.bias.requires_grad_(False)

    model = built(Marked)
    assert model.linear.weight.no_decay
    assert not model.linear.bias.requires_grad


@pytest.mark.parametrize("nested", [False, True])
def test_weights_come_from_a_file(tmp_path: Path, *, nested: bool) -> None:
    source = Gpt()
    state = source.state_dict()
    torch.save({"model": state} if nested else state, tmp_path / "weights.pt")
    model = built(Gpt, checkpoint=tmp_path / "weights.pt")
    for name, value in source.named_parameters():
        assert torch.equal(model.get_parameter(name), value), name
    assert model.steps.tolist() == list(range(16))
    assert model.head.weight is model.embed.weight


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    torch.save(Gpt(layers=3).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(WrapError, match=r"has besides layers\.2\.norm1\.weight, .* and \d+ more"):
        built(Gpt, checkpoint=tmp_path / "weights.pt")
    torch.save(Gpt(layers=1).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(WrapError, match=r"lacks layers\.1\.norm1\.weight"):
        built(Gpt, checkpoint=tmp_path / "weights.pt")
    torch.save(Gpt(vocab=62).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(WrapError, match=r"other shapes: embed\.weight \(62, 32\) for \(61, 32\)"):
        built(Gpt, checkpoint=tmp_path / "weights.pt")
    with pytest.raises(WrapError, match="no checkpoint at"):
        built(Gpt, checkpoint=tmp_path / "absent.pt")


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "vit"])
def test_hugging_face_models_start_as_their_authors_meant(kind: str) -> None:
    """Each parameter has the spread that it has in a model built for real."""
    from runtime.training import MODELS

    build = MODELS[kind][0]
    model, real = built(build), build()
    for name, expected in real.named_parameters():
        value = model.get_parameter(name)
        assert value.mean().item() == pytest.approx(expected.mean().item(), abs=0.01), name
        assert value.std().item() == pytest.approx(expected.std().item(), rel=0.35, abs=1e-3), name
    for name, expected in real.named_buffers():
        assert torch.equal(model.get_buffer(name), expected), name


class WithAttribute(Holder):
    """Keeps a tensor as a plain attribute, as Llama's own code does with rotary factors."""

    def __init__(self, scale: torch.Tensor | None = None) -> None:
        super().__init__()
        self.scale = torch.linspace(0, 1, 4) if scale is None else scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def test_tensors_that_are_plain_attributes_get_their_values() -> None:
    model = built(WithAttribute)
    assert torch.equal(model.scale, torch.linspace(0, 1, 4))
    assert model(torch.ones(1, 4)).isfinite().all()


def test_a_plain_attribute_that_cannot_be_made_again_is_named() -> None:
    with pytest.raises(WrapError, match="scale is a plain attribute without values"):
        built(lambda: WithAttribute(torch.rand(4)))


def test_a_checkpoint_has_the_names_of_a_module_that_is_held_twice(tmp_path: Path) -> None:
    def twice() -> nn.Module:
        return nn.ModuleList([Holder()] * 2)

    state = twice().state_dict()
    assert "1.linear.weight" in state
    torch.save(state, tmp_path / "held.pt")
    model = built(twice, checkpoint=tmp_path / "held.pt")
    assert torch.equal(model[1].linear.weight, state["0.linear.weight"])


def spectral() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), spectral_norm(nn.Linear(8, 4)))


def test_parametrized_weights_come_from_a_file(tmp_path: Path) -> None:
    saved = spectral()
    torch.save(saved.state_dict(), tmp_path / "weights.pt")
    loaded = parastrat.auto_parallelize(spectral, plan=plan(), checkpoint=tmp_path / "weights.pt")
    x = torch.ones(2, 4)
    assert torch.equal(loaded.eval()(x), saved.eval()(x))


def test_what_transformers_say_of_a_tied_head_goes_nowhere() -> None:
    """They tie behind their initialisers; ModernBERT's makes the head smaller than the embedding."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    def build() -> nn.Module:
        return ModernBertForMaskedLM(
            ModernBertConfig(
                vocab_size=100,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=4,
                num_attention_heads=2,
                pad_token_id=None,
            )
        )

    model, real = built(build), build()
    assert model.decoder.weight is model.model.embeddings.tok_embeddings.weight
    assert model.decoder.weight.std().item() == pytest.approx(real.decoder.weight.std().item(), rel=0.1)
