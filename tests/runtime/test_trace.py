"""Traced blocks against the closed form, against real tensors, and by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from runtime.models import Gpt
from runtime.traced_models import Alternating, Cnn, Skipping, really_saved
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from parastrat.errors import ModelError
from parastrat.model import Block, Family, ModelSource, ModelSpec, OperatorKind
from parastrat.plan import Recompute
from parastrat.runtime.blocks import parameter_count
from parastrat.runtime.building import load_builder
from parastrat.runtime.tensors.slots import slots_of
from parastrat.runtime.tracing import budget, watched
from parastrat.runtime.tracing.fakes import flash_attention
from parastrat.runtime.tracing.trace import traced_module, traced_source
from parastrat.sources import load_source
from parastrat.stack import Kernels
from parastrat.workload import Precision

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"
LENGTH = 64


def hugging_face(name: str) -> tuple[Any, Any]:
    """A tiny config of a family and the class that it builds."""
    transformers = importlib.import_module("transformers")
    size = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    config, cls = {
        "llama": (
            transformers.LlamaConfig(
                vocab_size=512,
                intermediate_size=352,
                num_key_value_heads=2,
                bos_token_id=1,
                eos_token_id=2,
                architectures=["LlamaForCausalLM"],
                **size,
            ),
            transformers.LlamaForCausalLM,
        ),
        "gpt2": (
            transformers.GPT2Config(
                vocab_size=512,
                n_embd=128,
                n_layer=4,
                n_head=4,
                n_positions=128,
                bos_token_id=1,
                eos_token_id=2,
                architectures=["GPT2LMHeadModel"],
            ),
            transformers.GPT2LMHeadModel,
        ),
        "bert": (
            transformers.BertConfig(
                vocab_size=512,
                intermediate_size=512,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                **size,
            ),
            transformers.BertForMaskedLM,
        ),
        "vit": (
            transformers.ViTConfig(
                intermediate_size=512,
                image_size=64,
                patch_size=16,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                **size,
            ),
            transformers.ViTForImageClassification,
        ),
        "videomae": (
            transformers.VideoMAEConfig(
                intermediate_size=512,
                image_size=64,
                num_frames=4,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                **size,
            ),
            transformers.VideoMAEForVideoClassification,
        ),
    }[name]
    return config, cls


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def spec(
    source: ModelSource, precision: Precision = Precision.FP32, length: int | None = LENGTH
) -> ModelSpec:
    return source.at(length if source.has_tokens else None, precision, Kernels.EAGER)


def kept(model: ModelSpec, policy: Recompute = Recompute.NONE) -> float:
    return sum(block.activations.under(policy).total * block.repeat for block in model.blocks)


def counted(model: ModelSpec) -> int:
    """The parameters of all blocks, ties once."""
    ties = {group.tie_group: group.count for block in model.blocks for group in block.parameters}
    ties.pop(None, None)
    untied = [
        group.count * block.repeat
        for block in model.blocks
        for group in block.parameters
        if group.tie_group is None
    ]
    return sum(untied) + sum(ties.values())


def unit(model: ModelSpec) -> Block:
    return next(block for block in model.blocks if block.unit)


@pytest.fixture(scope="module")
def example() -> ModelSource:
    return traced_source(f"{EXAMPLE}:build")


def test_the_example(example: ModelSource) -> None:
    model = spec(example)
    assert [(block.repeat, block.unit) for block in model.blocks] == [(1, False), (6, True), (1, False)]
    assert (model.parameters, counted(model), model.layers) == (1_222_656, 1_222_656, 6)
    assert model.causal
    assert model.family is Family.MODULE
    assert example.has_tokens
    first, _, last = model.blocks
    tied = {group.tie_group for block in (first, last) for group in block.parameters if group.tie_group}
    assert tied == {"embedding.weight"}


def test_largest_weights_are_told_with_their_ties(example: ModelSource) -> None:
    first, layer, last = spec(example).blocks
    table = max(first.parameters, key=lambda group: group.count)
    assert table.tie_group is not None
    assert first.added == last.added == table
    # of its products the widest, not all that it has
    assert layer.added is not None
    assert layer.added.tie_group is None
    assert 0 < 3 * layer.added.trainable <= layer.parameter_count


def test_the_examples_operators(example: ModelSource) -> None:
    width, found = 128, unit(spec(example)).operators
    products = {(o.m, o.n, o.k): o.flops for o in found if o.kind is OperatorKind.MATMUL}
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    assert products == {(LENGTH, n, k): 2 * LENGTH * n * k for n, k in shapes}
    assert all(o.weighted for o in found if o.kind is OperatorKind.MATMUL)
    # a causal mask leaves half of q k^T and of its product with v
    assert [o.flops for o in found if o.kind is OperatorKind.ATTENTION] == [2 * LENGTH * LENGTH * width]


def test_a_source_traces_once_per_length_and_format(example: ModelSource) -> None:
    assert spec(example) is spec(example)
    assert spec(example, Precision.BF16_MIXED).precision is Precision.BF16_MIXED
    assert kept(spec(example, Precision.BF16_MIXED)) < 0.6 * kept(spec(example))
    assert kept(spec(example, length=2 * LENGTH)) == pytest.approx(2 * kept(spec(example)), rel=0.01)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16_MIXED])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_hugging_face_decoders_equal_the_closed_form(
    tmp_path: Path, name: str, precision: Precision
) -> None:
    config, cls = hugging_face(name)
    config.save_pretrained(tmp_path)
    closed = load_source(str(tmp_path))
    assert closed is not None
    expected = spec(closed, precision)
    source = traced_module(on_meta(lambda: cls(config)), ref=name)
    model = spec(source, precision)
    assert model.parameters == counted(model) == expected.parameters
    assert model.layers == expected.layers
    assert source.max_sequence_length == closed.max_sequence_length
    layer, layer_expected = unit(model), unit(expected)
    assert layer.repeat == 4
    assert layer.flops == layer_expected.flops
    assert layer.boundary_bytes == layer_expected.boundary_bytes
    for policy in Recompute:
        traced = layer.activations.under(policy).total
        assert traced == pytest.approx(layer_expected.activations.under(policy).total, rel=0.002), policy
        # beside them, rotary angles (two of 32 channels), token ids, positions and labels stay alive
        extra = kept(model, policy) - kept(expected, policy)
        assert -0.01 * kept(expected, policy) <= extra <= LENGTH * (2 * 32 * 4 + 4 * 8), policy


def step_of_example(module: nn.Module) -> torch.Tensor:
    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    return functional.cross_entropy(module(ids).flatten(0, 1), ids.flatten())


def step_of_cnn(module: nn.Module) -> torch.Tensor:
    return functional.cross_entropy(module(torch.zeros(2, 3, 64, 64)), torch.zeros(2, dtype=torch.long))


def step_of_bert(module: nn.Module) -> torch.Tensor:
    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    return module(input_ids=ids, labels=ids.clone()).loss


def step_of_vit(module: nn.Module) -> torch.Tensor:
    return module(pixel_values=torch.zeros(2, 3, 64, 64), labels=torch.zeros(2, dtype=torch.long)).loss


def step_of_videos(module: nn.Module) -> torch.Tensor:
    return module(pixel_values=torch.zeros(2, 4, 3, 64, 64), labels=torch.zeros(2, dtype=torch.long)).loss


def build_example() -> nn.Module:
    built: nn.Module = load_builder(f"{EXAMPLE}:build").build()
    return built


def images(samples: int, _length: int | None) -> torch.Tensor:
    return torch.zeros(samples, 3, 64, 64)


@pytest.mark.parametrize(
    ("build", "step", "sample_inputs"),
    [
        (build_example, step_of_example, None),
        (Cnn, step_of_cnn, images),
        (lambda: hugging_face("bert")[1](hugging_face("bert")[0]), step_of_bert, None),
        (lambda: hugging_face("vit")[1](hugging_face("vit")[0]), step_of_vit, None),
        (lambda: hugging_face("videomae")[1](hugging_face("videomae")[0]), step_of_videos, None),
    ],
    ids=["example", "cnn", "bert", "vit", "videomae"],
)
def test_real_tensors_are_saved_as_traced(
    build: Callable[[], nn.Module], step: Callable[[nn.Module], torch.Tensor], sample_inputs: Any
) -> None:
    torch.manual_seed(0)
    module = build().train()
    traced = kept(spec(traced_module(module, ref="it", sample_inputs=sample_inputs)))
    real = really_saved(module, step)
    assert 2 * traced == pytest.approx(real, rel=0.02)


def test_a_module_is_as_before() -> None:
    module = Cnn().eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    tensors = [slot.tensor for slot in slots_of(module)]
    spec(traced_module(module, ref="it", sample_inputs=images))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(slot.tensor is tensor for slot, tensor in zip(slots_of(module), tensors, strict=True))
    assert not any(part.training for part in module.modules())
    assert not any(part._forward_hooks or "forward" in vars(part) for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_convolutional_network() -> None:
    source = traced_module(on_meta(Cnn), ref="cnn", sample_inputs=images)
    model = spec(source)
    assert source.family is Family.CONVOLUTIONAL
    assert not source.has_tokens
    assert (model.parameters, model.layers) == (counted(model), 6)
    # the first block of a stage has another input, and here another shortcut
    assert [block.repeat for block in model.blocks if block.unit] == [1, 2, 1, 2]
    pixels = 32 * 32
    stem = model.blocks[0].operators[0]
    assert (stem.kind, stem.m, stem.n, stem.k) == (OperatorKind.CONVOLUTION, pixels, 16, 3 * 7 * 7)
    assert stem.flops == 2 * pixels * 16 * 3 * 7 * 7


def test_what_a_small_chain_keeps_by_hand() -> None:
    model = spec(traced_module(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), ref="it"))
    (only,) = model.blocks
    assert not only.unit
    # the input, ReLU's output (the second matrix's input), log-softmax's output and the target; the loss
    # and the sum of the targets' weights are the same for any batch
    assert only.activations.none.total == 4 * (8 + 16 + 4) + 8 + 2 * 4
    assert only.flops == 2 * (8 * 16 + 16 * 4)
    assert "vectors of 8" in " ".join(model.caveats)


def test_what_crosses_a_cut() -> None:
    width = 8 * 4
    model = spec(traced_module(on_meta(Skipping), ref="it"))
    assert [block.boundary_bytes for block in model.blocks if block.unit for _ in range(block.repeat)] == [
        width,  # the first layer's output, which the next and the last read
        2 * width,
        2 * width,
        2 * width,
    ]


def test_layers_that_only_look_equal_stay_apart() -> None:
    model = spec(traced_module(on_meta(Alternating), ref="it"))
    layers = [block for block in model.blocks if block.unit]
    assert [block.repeat for block in layers] == [1] * 8
    extra = layers[0].activations.none.total - layers[1].activations.none.total
    assert extra == 4 * 32  # the inner GELU's output


def everything(module: nn.Module, inputs: Any) -> tuple[ModelSpec, ModelSpec]:
    """The module as traced, and with every block run."""
    with patch.object(watched, "two_of_a_kind", lambda *_: nullcontext()):
        whole = spec(traced_module(module, ref="it", sample_inputs=inputs))
    return spec(traced_module(module, ref="it", sample_inputs=inputs)), whole


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (build_example, None),
        (Skipping, None),
        (Alternating, None),
        (Cnn, images),
        (lambda: hugging_face("llama")[1](hugging_face("llama")[0]), None),
        (lambda: hugging_face("bert")[1](hugging_face("bert")[0]), None),
    ],
    ids=["example", "skipping", "alternating", "cnn", "llama", "bert"],
)
def test_two_blocks_of_a_kind_tell_about_all(build: Callable[[], nn.Module], inputs: Any) -> None:
    fast, whole = everything(on_meta(build), inputs)
    assert counted(fast) == counted(whole)
    assert fast.caveats == whole.caveats
    assert [block.repeat for block in fast.blocks] == [block.repeat for block in whole.blocks]
    for quick, slow in zip(fast.blocks, whole.blocks, strict=True):
        assert quick.operators == slow.operators, quick.name
        assert quick.activations == slow.activations, quick.name
        assert quick.boundary_bytes == slow.boundary_bytes, quick.name
        assert quick.working.total == pytest.approx(slow.working.total, rel=0.02), quick.name


def test_blocks_after_the_second_of_a_kind_do_not_run() -> None:
    ran: list[int] = []
    module = Skipping()
    for number, layer in enumerate(module.layers):
        layer.up.register_forward_hook(lambda *_, number=number: ran.append(number))
    spec(traced_module(module, ref="it", divides=False))
    # the first one's input needs no gradient, so it is of its own kind; two micro-batches are traced
    assert ran == [0, 1, 2, 0, 1, 2]


def test_frozen_and_idle_parameters() -> None:
    module = Gpt()
    module.positions.weight.requires_grad_(False)
    module.unused = nn.Linear(3, 5)
    model = spec(traced_module(on_meta(lambda: module), ref="it"), length=16)
    # what takes no part gets no gradient either
    assert sum(group.frozen for block in model.blocks for group in block.parameters) == 16 * 32 + 20
    assert counted(model) == parameter_count(module)
    assert any("20 parameters (unused.weight, ...) take no part" in caveat for caveat in model.caveats)


def test_recompute_of_attention_frees_what_its_core_alone_keeps(example: ModelSource) -> None:
    found = unit(spec(example)).activations
    # the example's rotated queries lie head by head, so that the output is copied for the next matrix
    statistics, output = 4 * 4 * LENGTH, 4 * 128 * LENGTH
    freed = found.none.total - found.attention.total
    assert freed == pytest.approx(statistics + output, abs=64)  # and the random state


def test_a_sequence_too_long_for_the_model() -> None:
    with pytest.raises(ModelError, match=r"Gpt\.forward raised RuntimeError") as caught:
        spec(traced_module(on_meta(Gpt), ref="it"), length=64)
    assert "--seq-len" in caught.value.hint


class Branching(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        if self.how in {"if", "unless"} and bool(y.sum() > 0) == (self.how == "if"):
            return y.exp().tanh()
        if self.how == "mask":
            return y[y > 0].exp()
        if self.how == "places":
            rows, columns = torch.where(y > 0)
            return y[rows, columns].exp()
        if self.how == "number":
            return y[: int(x.sum().item())]
        if self.how == "numpy":
            return y.detach().numpy()
        if self.how == "batch":
            return y if x.shape[0] < 3 else y.relu()
        if self.how == "nothing":
            return None
        return y


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "number",
            "Branching.forward depends on values at aten._local_scalar_dense.default: test_trace.py, line",
        ),
        ("numpy", "Branching.forward raised RuntimeError"),
        ("batch", "runs other operators for 4 samples than for 2"),
        ("nothing", "returned nothing that depends on a trainable parameter"),
    ],
)
def test_forwards_that_cannot_be_traced(how: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        spec(traced_module(on_meta(lambda: Branching(how)), ref="it"))
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("how", "answer", "size"),
    [
        # the input, the last output and its target, and what exp and tanh keep, of four values each
        ("if", "yes", 5 * 4 * 4 - 8),
        ("unless", "no", 5 * 4 * 4 - 8),
        # the input and what exp keeps of all, and the mask, or row and column of each
        ("mask", "yes", 2 * 4 * 4 + 4),
        ("places", "yes", 2 * 4 * 4 + 2 * 8 * 4),
    ],
)
def test_what_hangs_on_values_is_estimated_by_what_holds_most(how: str, answer: str, size: int) -> None:
    model = spec(traced_module(on_meta(lambda: Branching(how)), ref="it"))
    (said,) = [caveat for caveat in model.caveats if "asks for values" in caveat]
    assert "test_trace.py, line" in said
    assert f"taken to be {answer}" in said
    assert model.blocks[0].activations.none.replicated == size


class Routed(nn.Module):
    """Has some of its samples computed by a layer, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        out, chosen = torch.zeros_like(h), h[..., 0] > 0
        out[chosen] = self.layer(h[chosen])
        return out


def test_only_the_users_lines_are_said_to_ask_for_values() -> None:
    # the backward of what selects asks again, where none of them runs
    model = spec(traced_module(on_meta(Routed), ref="it"))
    (said,) = [caveat for caveat in model.caveats if "asks for values" in caveat]
    places = said.partition("lacks (")[2].partition(")")[0].split("; ")
    assert len(places) == 1
    assert places[0].startswith("test_trace.py, line")


class Pairwise(nn.Module):
    """Compares all samples with each other, as contrastive losses do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.sigmoid(y @ y.T).exp().tanh().sum()


def test_activations_that_grow_faster_than_the_batch_are_told() -> None:
    model = spec(traced_module(on_meta(Pairwise), ref="it"))
    assert any("grow faster than the micro-batch" in caveat for caveat in model.caveats)


class Packed(nn.Module):
    """Puts all samples into one sequence, and a mask between them, as vision towers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 512) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(())
        for layer in self.layers:
            total = total + layer(x).tanh().sum()
        scores = x[:, :1] @ x[:, :1].T
        return total + scores.requires_grad_().exp().sum()


def test_what_grows_little_between_few_samples_is_told_of_many() -> None:
    (said,) = (each for each in spec(traced_module(on_meta(Packed), ref="it")).caveats if "faster" in each)
    # each sample keeps 8 x 512 numbers, and two for every sample: 60 of them beyond those that were traced
    assert said.endswith("64 samples take 3% more than estimated")


class Unguessable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_inputs_that_cannot_be_guessed() -> None:
    with pytest.raises(ModelError, match="what Unguessable takes cannot be guessed") as caught:
        traced_module(on_meta(Unguessable), ref="it")
    assert "def sample_inputs(micro_batch_size, sequence_length)" in caught.value.hint


def raising(_samples: int, _length: int | None) -> Any:
    raise KeyError("vocabulary")


def test_sample_inputs_that_fail() -> None:
    with pytest.raises(ModelError, match=r"sample_inputs\(1, 64\) raised KeyError"):
        traced_module(on_meta(Unguessable), ref="it", sample_inputs=raising)
    with pytest.raises(ModelError, match="returned int without a tensor"):
        traced_module(on_meta(Unguessable), ref="it", sample_inputs=lambda _samples, _length: 3)


@pytest.mark.parametrize("batch", [torch.zeros(5, 3), (torch.zeros(5, 3),), {"x": torch.zeros(5, 3)}])
def test_a_batch_stands_for_others(batch: Any) -> None:
    model = spec(traced_module(on_meta(Unguessable), ref="it", sample_inputs=batch))
    assert unit_flops(model) == 2 * 3 * 3


def unit_flops(model: ModelSpec) -> float:
    return sum(block.flops for block in model.blocks)


def test_a_batch_of_tokens_takes_any_length() -> None:
    source = traced_module(on_meta(Gpt), ref="it", sample_inputs=torch.zeros(3, 16, dtype=torch.long))
    assert source.has_tokens
    assert kept(spec(source, length=16)) == pytest.approx(2 * kept(spec(source, length=8)), rel=0.02)


def test_a_recurrent_network_is_traced() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 8), nn.Linear(16, 20)
            self.recurrent = nn.LSTM(8, 16, batch_first=True)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.recurrent(self.embed(ids))[0])

    model = spec(traced_module(on_meta(Tagger), ref="it"))
    weights = 4 * 16 * (8 + 16 + 2)
    recurrent = [o for block in model.blocks for o in block.operators if o.kind is OperatorKind.RECURRENT]
    assert [operator.flops for operator in recurrent] == [2 * weights * LENGTH]
    assert any("recurrent kernels" in caveat for caveat in model.caveats)

    def step(module: nn.Module) -> torch.Tensor:
        ids = torch.zeros(8, LENGTH, dtype=torch.long)
        return functional.cross_entropy(module(ids).flatten(0, 1), ids.flatten())

    assert 8 * kept(model) == pytest.approx(really_saved(Tagger(), step), rel=0.02)


def test_routed_experts_are_traced_in_every_format() -> None:
    transformers = importlib.import_module("transformers")
    config = transformers.MixtralConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    source = traced_module(on_meta(lambda: transformers.MixtralForCausalLM(config)), ref="it")
    whole, short = spec(source, Precision.FP32), spec(source, Precision.BF16_MIXED)
    assert unit_flops(whole) == unit_flops(short) > 0
    assert kept(short) < kept(whole)


class Tied(nn.Module):
    """Reads one weight three times: for two inputs and for the output."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(functional.gelu(self.up(x)))

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4096, 8)
        self.first = nn.ModuleList(self.Layer() for _ in range(3))
        self.second = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.first:
            x = layer(x)
        y = x + self.embed(ids)
        for layer in self.second:
            y = layer(y)
        return functional.linear(y, self.embed.weight)


def test_a_gradient_that_waits_for_the_next_use_of_its_weight_is_no_working_memory() -> None:
    weight, ids = 4 * 4096 * 8, torch.zeros(2, 4, dtype=torch.long)
    model = spec(traced_module(on_meta(Tied), ref="it", sample_inputs=ids), length=4)
    units = [block for block in model.blocks if block.unit]
    assert [block.repeat for block in units] == [3, 3]
    assert all(block.working.fixed < weight / 4 for block in units)
    # where it is read again its gradient is made, and added to the one before as a third
    embedding, between, _ = (block for block in model.blocks if not block.unit)
    assert embedding.working.fixed == pytest.approx(2 * weight, rel=0.05)
    assert between.working.fixed == pytest.approx(2 * weight, rel=0.05)


def test_what_the_model_returned_lies_beside_every_block_and_is_no_blocks_own() -> None:
    ids = torch.zeros(2, 4, dtype=torch.long)
    blocks = spec(traced_module(on_meta(Tied), ref="it", sample_inputs=ids), length=4).blocks
    logits = 4 * 4 * 4096
    assert [block.output.total for block in blocks] == [0] * (len(blocks) - 1) + [logits]
    # as a pipeline's stages have them, whose last one hands out its loss
    assert all(block.working.total < logits / 4 for block in blocks if block.unit)
    # a model without blocks has it at some of its moments alone: its forward may hold most before
    (whole,) = spec(traced_module(on_meta(lambda: nn.Linear(4, 4)), ref="it")).blocks
    assert whole.output.total == 0


def test_gradients_that_those_of_weights_are_made_of_later() -> None:
    ids = torch.zeros(2, 4, dtype=torch.long)
    blocks = spec(traced_module(on_meta(Tied), ref="it", sample_inputs=ids), length=4).blocks
    # of both products of a layer what they give, and of a head the logits less what the loss keeps of them
    units = [block for block in blocks if block.unit]
    assert [block.awaited.total for block in units] == [4 * 4 * (32 + 8)] * len(units)
    assert blocks[-1].awaited.total == pytest.approx(0, abs=128)


def test_what_has_the_size_of_weights_does_not_grow_with_the_samples() -> None:
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model = spec(traced_module(layers, ref="it", divides=False))
    # the loss and the sum of the targets' weights
    (only,) = model.blocks
    assert only.activations.none.fixed == 2 * 4
    assert only.activations.none.replicated == 4 * (8 + 16 + 4) + 8


def test_values_that_are_narrower_than_keys() -> None:
    with FakeTensorMode():
        query, value = torch.empty(2, 4, 8, 24), torch.empty(2, 4, 8, 16)
        assert flash_attention(query, query, value, is_causal=True).shape == value.shape


class _Booleans(TorchDispatchMode):
    """Notes the operators that make booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.booleans = list[Any]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.bool:
            self.booleans.append(func)
        return made


def test_no_other_mask_is_made_of_one_that_attention_adds() -> None:
    query, mask = torch.empty(2, 4, 8, 16), torch.ones(2, 1, 8, 8, dtype=torch.bool)
    # as in torch's own function
    with _Booleans() as real:
        functional.scaled_dot_product_attention(query, query, query, mask)
    with FakeTensorMode() as fakes:
        own, given = fakes.from_tensor(query), fakes.from_tensor(mask)
        with _Booleans() as made:
            assert flash_attention(own, own, own, given).shape == query.shape
    assert made.booleans == real.booleans == []


class Scanning(nn.Module):
    """Loops over the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state, states = 0, []
        for position in self.embed(ids).unbind(1):
            state = 0.5 * state + position
            states.append(state)
        return self.head(torch.stack(states, 1))


def test_a_loop_over_positions_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source = traced_module(
        Scanning(), ref="scan", sample_inputs=lambda samples, length: torch.zeros(samples, length).long()
    )
    before = source.layout, source.at(4, Precision.FP32, Kernels.EAGER)
    assert all(before)
    monkeypatch.setattr(budget, "BUDGET_S", 0.0)
    with pytest.raises(ModelError, match=r"Scanning\.forward has called \d+ functions in 0 s"):
        source.at(8, Precision.FP32, Kernels.EAGER)
    monkeypatch.undo()
    # the module is as before, and nothing of the trace is left
    assert source.at(8, Precision.FP32, Kernels.EAGER).sequence_length == 8
