"""A diffusion transformer counted by hand (latents of 8 x 8 with 3 channels, so 16 patches of 2 x 2), and
against a module of the paper's blocks: its parameters, and what autograd saves in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sources.test_saved_tensors import saved_by_autograd
from torch import nn
from torch.nn import functional

from parastrat.model import Block, Family, ModelSpec, OperatorKind, Parameters
from parastrat.saved import Saved
from parastrat.sources import load_source
from parastrat.sources.diffusion import DiffusionTransformer, diffusion_transformer
from parastrat.sources.presets import ImageSource
from parastrat.stack import Kernels
from parastrat.workload import Precision

SMALL = DiffusionTransformer(
    name="small", layers=3, hidden=64, heads=4, latent_size=8, channels=3, patch=2, classes=10
)
H, T = 64, 16
#: bytes of a tensor of the width, and of a vector of it
WIDTH, VECTOR = 2 * H * T, 2 * H


def model(kernels: Kernels = Kernels.EAGER, precision: Precision = Precision.BF16_MIXED) -> ModelSpec:
    return diffusion_transformer(SMALL, precision, kernels, ref="small")


def named(name: str, kernels: Kernels = Kernels.EAGER) -> Block:
    (found,) = [block for block in model(kernels).blocks if block.name == name]
    return found


class Condition(nn.Module):
    """Vectors of one sample, made of its condition."""

    def __init__(self, width: int, vectors: int) -> None:
        super().__init__()
        self.vectors = vectors
        self.dense = nn.Linear(width, vectors * width)

    def forward(self, condition: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made: torch.Tensor = self.dense(functional.silu(condition))
        return made[:, None].chunk(self.vectors, dim=-1)


class Layer(nn.Module):
    """An adaLN-Zero block: arXiv:2212.09748, figure 3."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width, elementwise_affine=False) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.condition = Condition(width, 6)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift, scale, gate, shift_2, scale_2, gate_2 = self.condition(condition)
        heads = self.qkv(self.norms[0](x) * (1 + scale) + shift).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate * self.out(attended)
        inner = functional.gelu(self.up(self.norms[1](x) * (1 + scale_2) + shift_2), approximate="tanh")
        return x + gate_2 * self.down(inner)


class Network(nn.Module):
    def __init__(self, network: DiffusionTransformer) -> None:
        super().__init__()
        n, h = network, network.hidden
        self.patches = nn.Conv2d(n.channels, h, n.patch, stride=n.patch)
        self.positions = nn.Parameter(torch.zeros(1, n.tokens, h), requires_grad=False)
        self.level = nn.Sequential(nn.Linear(256, h), nn.SiLU(), nn.Linear(h, h))
        self.classes = nn.Embedding(n.classes + 1, h)
        self.layers = nn.ModuleList([Layer(h, n.heads) for _ in range(n.layers)])
        self.norm = nn.LayerNorm(h, elementwise_affine=False)
        self.condition = Condition(h, 2)
        self.last = nn.Linear(h, n.patch**2 * 2 * n.channels)

    def forward(self, latents: torch.Tensor, level: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.patches(latents).flatten(2).transpose(1, 2) + self.positions
        condition = self.level(level) + self.classes(label)
        for layer in self.layers:
            x = layer(x, condition)
        shift, scale = self.condition(condition)
        predicted = self.last(self.norm(x) * (1 + scale) + shift)
        # the noise is half of what is predicted
        return functional.mse_loss(
            predicted[..., : predicted.shape[-1] // 2],
            torch.randn_like(predicted[..., : predicted.shape[-1] // 2]),
        )


def test_the_chain() -> None:
    spec = model()
    assert [(block.name, block.repeat, block.unit) for block in spec.blocks] == [
        ("patches", 1, False),
        ("layer", 3, True),
        ("head", 1, False),
    ]
    assert (spec.family, spec.layers, spec.heads, spec.kv_heads) == (Family.VISION_TRANSFORMER, 3, 4, 4)
    assert (spec.sequence_length, spec.vocab, len(spec.caveats)) == (None, None, 2)


def test_parameters_in_closed_form() -> None:
    # 12 of attention and feed-forward and 6 of the condition, squared; biases 9 and 6
    assert named("layer").parameter_count == 18 * H**2 + 15 * H
    patches = (3 * 4 + 1) * H + (256 + 1) * H + (H + 1) * H + 11 * H
    assert named("patches").parameters == (Parameters(trainable=patches, frozen=T * H),)
    assert named("head").parameter_count == 2 * (H + 1) * H + (H + 1) * 24


def test_products_of_a_layer() -> None:
    operators = named("layer").operators
    products = [(o.m, o.n, o.k) for o in operators if o.kind is OperatorKind.MATMUL]
    assert products == [(1, 6 * H, H), (T, 3 * H, H), (T, H, H), (T, 4 * H, H), (T, H, 4 * H)]
    assert [o.flops for o in operators if o.kind is OperatorKind.ATTENTION] == [4 * T * T * H]
    traffic = sum(o.bytes for o in operators if o.kind is OperatorKind.ELEMENTWISE)
    # norms with the sum before them, attention's output, the GELU, and scaling and gating
    assert traffic == (2 * (2 + 3) + 1 + 2 * 4 + 2 * 2 * 2) * WIDTH


@pytest.mark.parametrize(
    ("kernels", "tensors"),
    # input, norm and scaled; q, k, v and output; branch; again, with the inner layer before and behind
    # its GELU: compiled kernels compute norms again that no product reads
    [(Kernels.EAGER, 3 + 4 + 1 + 3 + 8 + 1), (Kernels.COMPILED, 2 + 4 + 1 + 2 + 8 + 1)],
)
def test_what_a_layer_keeps(kernels: Kernels, tensors: int) -> None:
    block = named("layer", kernels)
    statistics = 4 * 4 * T + (2 * 8 * T if kernels is Kernels.EAGER else 2 * 4 * T)
    assert block.activations.none.total == tensors * WIDTH + statistics + 9 * VECTOR
    assert block.activations.full == Saved(sequence=WIDTH)
    assert block.activations.selective.total < block.activations.none.total
    # with the condition
    assert block.boundary_bytes == WIDTH + VECTOR


def test_patches_and_the_condition_multiply() -> None:
    operators = named("patches").operators
    assert [(o.m, o.n, o.k) for o in operators if o.m] == [
        (T, H, SMALL.channels * SMALL.patch**2),
        (1, H, 256),
        (1, H, H),
    ]
    assert [(o.flops, o.bytes) for o in operators if o.m] == [
        (2 * T * H * SMALL.channels * SMALL.patch**2, 0),
        (2 * H * 256, 0),
        (2 * H * H, 0),
    ]
    # the fixed positions are added
    assert [o.bytes for o in operators if o.kind is OperatorKind.ELEMENTWISE] == [2 * WIDTH]
    assert [(o.m, o.n, o.k) for o in named("head").operators if o.m] == [
        (1, 2 * H, H),
        (T, 2 * SMALL.channels * SMALL.patch**2, H),
    ]


def test_a_patch_is_square() -> None:
    spec = diffusion_transformer(replace(SMALL, patch=4), Precision.BF16_MIXED, Kernels.EAGER, ref="small")
    first, last = (
        [(o.n, o.k) for o in block.operators if o.m] for block in (spec.blocks[0], spec.blocks[-1])
    )
    assert first[0] == (H, SMALL.channels * 16)
    assert last[-1] == (2 * SMALL.channels * 16, H)


def test_the_last_norm_is_scaled_and_not_gated() -> None:
    traffic = [o.bytes for o in named("head").operators if o.kind is OperatorKind.ELEMENTWISE]
    assert traffic == [2 * WIDTH, 2 * WIDTH]


def test_patches_keep_latents_what_the_condition_is_made_of_and_a_class() -> None:
    latents = SMALL.channels * SMALL.patch**2 * T
    # 256 frequencies, of which the loop's stay in fp32 as its latents do; the perceptron's inner vector
    # before and behind SiLU, and the condition
    assert named("patches").activations.none.total == (2 + 4) * (latents + 256) + 2 * 3 * H + 8


def test_the_head_keeps_its_norm_the_condition_and_what_the_error_compares() -> None:
    latent = SMALL.channels * SMALL.patch**2
    norm, scaled = 2 * WIDTH + 8 * T, WIDTH
    # SiLU's output, shift, scale, and one plus scale; the prediction, and the noise
    assert named("head").activations.none.total == norm + scaled + 4 * VECTOR + 2 * (2 + 1) * latent * T
    # compiled kernels compute the norm again, and keep it scaled
    compiled = named("head", Kernels.COMPILED).activations.none.total
    assert compiled == 2 * WIDTH + 4 * T + 4 * VECTOR + 2 * (2 + 1) * latent * T


def test_a_layer_works_on_gradients_and_talks_to_other_ranks() -> None:
    block = named("layer")
    # the gradient of GELU's input takes the place of its output
    assert block.working == Saved(tensor=4 * WIDTH, sequence=WIDTH)
    assert named("layer", Kernels.COMPILED).working == Saved(tensor=2 * 4 * WIDTH, sequence=2 * WIDTH)
    assert (block.tensor_parallel_collectives, block.tensor_parallel_bytes) == (2, WIDTH)
    assert block.context_parallel_bytes == 2 * WIDTH
    assert named("head").boundary_bytes == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_the_closed_form_is_what_autograd_saves(dtype: torch.dtype) -> None:
    precision = Precision.FP32 if dtype is torch.float32 else Precision.BF16_MIXED
    spec, module = model(precision=precision), Network(SMALL)
    assert spec.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert spec.trainable_parameters == sum(p.numel() for p in module.parameters() if p.requires_grad)
    inputs = {
        "latents": torch.randn(2, 3, 8, 8, dtype=dtype),
        "level": torch.randn(2, 256, dtype=dtype),
        "label": torch.zeros(2, dtype=torch.long),
    }
    closed = 2 * sum(block.activations.none.total * block.repeat for block in spec.blocks)
    assert closed == pytest.approx(saved_by_autograd(module.to(dtype), inputs), rel=0.01)


@pytest.mark.parametrize(("name", "published"), [("s", 6.06), ("b", 23.01), ("l", 80.71), ("xl", 118.64)])
def test_a_preset_multiplies_as_published(name: str, published: float) -> None:
    # arXiv:2212.09748, table 4: G multiply-adds at 256 pixels
    source = load_source(f"dit-{name}-2")
    assert isinstance(source, ImageSource)
    assert source.family is Family.VISION_TRANSFORMER
    spec = source.at(None, Precision.BF16_MIXED, Kernels.EAGER)
    assert spec.flops / 2e9 == pytest.approx(published, rel=0.001)


def test_the_largest_counts_what_its_authors_count() -> None:
    # https://github.com/facebookresearch/DiT, as built: 675,129,632 with the fixed positions
    source = load_source("dit-xl-2")
    assert source is not None
    with torch.device("meta"):
        module = Network(
            DiffusionTransformer(
                name="",
                layers=28,
                hidden=1152,
                heads=16,
                latent_size=32,
                channels=4,
                patch=2,
                classes=1000,
            )
        )
    built = sum(parameter.numel() for parameter in module.parameters())
    assert source.at(None, Precision.FP32, Kernels.EAGER).parameters == built == 675_129_632
