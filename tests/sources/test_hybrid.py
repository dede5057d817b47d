"""Hybrids as published, and by hand: width 8, 10 tokens, one layer of each kind, two further tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import small

from parastrat.model import Block, ModelSpec, OperatorKind, Split
from parastrat.plan import Recompute
from parastrat.saved import Saved
from parastrat.sources import load_source
from parastrat.sources.architecture import Experts, NextTokens, StateSpace
from parastrat.sources.attending import attention
from parastrat.sources.ends import head
from parastrat.sources.feed_forward import feed_forward, mixture
from parastrat.sources.hybrid import hybrid_layers, next_tokens
from parastrat.sources.layers import Part, Setting, norm
from parastrat.sources.presets import TransformerSource
from parastrat.sources.state_space import scan_gradients, state_space
from parastrat.stack import Kernels
from parastrat.workload import Precision

LENGTH, T = 512, 10
SMALL = replace(
    small.SMALL,
    layers=4,
    gated=False,
    rotary=False,
    pattern="M*-E",
    state_space=StateSpace(heads=4, head_dim=3, state=5, groups=2, chunk=2),
    experts=Experts(count=6, top_k=2, ffn=5),
    next_tokens=NextTokens(pattern="*E", depth=2),
)


def setting(kernels: Kernels = Kernels.FUSED, **changes: Any) -> Setting:
    return Setting(architecture=replace(SMALL, **changes), tokens=T, element=2, kernels=kernels)


def layers(kernels: Kernels = Kernels.FUSED, **changes: Any) -> dict[str, Block]:
    blocks = hybrid_layers(setting(kernels, **changes))
    return dict(zip("M*-E", blocks, strict=True))


def test_each_layer_is_a_norm_and_its_part() -> None:
    parts: dict[str, Callable[[Setting], Part]] = {
        "M": state_space,
        "*": partial(attention, causal=True),
        "-": feed_forward,
        "E": mixture,
    }
    for letter, block in layers().items():
        own = parts[letter](setting())
        before = norm(setting(), added=True)
        assert block.parameters == before.parameters + own.parameters
        assert block.operators == before.operators + own.operators
        assert block.activations.none == before.saved + own.saved
        assert block.activations.full == Saved(sequence=2 * 8 * T)
        assert (block.tensor_parallel_bytes, block.repeat) == (2 * 8 * T, 1)


def test_the_stream_is_whole_where_scans_are() -> None:
    for divided, whole in zip(layers().values(), layers(Kernels.EAGER).values(), strict=True):
        assert any(operator.split is Split.SEQUENCE for operator in divided.operators)
        assert not any(operator.split is Split.SEQUENCE for operator in whole.operators)
        kept = [whole.activations.under(policy) for policy in Recompute]
        assert {saved.sequence for saved in (*kept, whole.working, whole.awaited)} == {0}
        assert whole.activations.full == Saved(replicated=2 * 8 * T)
        assert whole.awaited.replicated >= 2 * 8 * T
        assert whole.working.total >= 2 * 2 * 8 * T


def test_a_hybrid_without_scans_divides_its_stream() -> None:
    own = setting(Kernels.EAGER, pattern="*-", state_space=None)
    assert all(block.activations.full.sequence for block in hybrid_layers(own))


def test_what_backward_makes_of_each_layer() -> None:
    residual = 2 * 2 * 8 * T
    made = {letter: block.working for letter, block in layers().items()}
    assert made["*"] == Saved(tensor=2 * 2 * (4 + 2) * 3 * T, sequence=residual)
    assert made["-"] == Saved(tensor=2 * 2 * 20 * T, sequence=residual)
    assert made["E"] == Saved(expert=2 * 2 * 2 * 5 * T, sequence=residual)
    assert made["M"] == scan_gradients(setting(), 2 * 8 * T)


def test_one_norm_awaits_its_gradient() -> None:
    assert {block.awaited.sequence for block in layers().values()} == {2 * 8 * T}


def test_experts_alone_exchange_tokens() -> None:
    sent = {letter: (b.expert_parallel_bytes, b.experts_per_token) for letter, b in layers().items()}
    assert sent == {"M": (0, 0), "*": (0, 0), "-": (0, 0), "E": (2 * 2 * 8 * T, 2)}


@pytest.mark.parametrize(
    ("changes", "readers"),
    [
        ({}, {"M": 1, "*": 3, "-": 1, "E": 1}),
        ({"gated": True, "fused_qkv": True}, {"M": 1, "*": 1, "-": 2, "E": 2}),
    ],
)
def test_each_product_that_reads_a_norm_has_a_copy_under_autocast(
    changes: dict[str, Any], readers: dict[str, int]
) -> None:
    under = replace(setting(Kernels.EAGER, **changes), autocast=True)
    for letter, block in zip("M*-E", hybrid_layers(under), strict=True):
        own = Part(parameters=block.parameters, operators=block.operators)
        before = norm(under, added=True, readers=readers[letter])
        assert own.operators[0].bytes == before.operators[0].bytes
        alone = norm(under, added=True, readers=readers[letter] + 1)
        copy = (alone.saved + before.saved.times(-1)).total
        assert copy == 2 * 8 * T
        assert block.activations.none.sequence == 0
        without = {
            "M": state_space(under),
            "*": attention(under, causal=True),
            "-": feed_forward(under),
            "E": mixture(under),
        }[letter]
        assert block.activations.none.total == (before.saved + without.saved).total


def test_the_module_for_further_tokens() -> None:
    (module,) = next_tokens(setting())
    attended, mixed = layers()["*"], layers()["E"]
    # two norms and one before the logits; two widths to one
    own = 3 * 8 + 2 * 8 * 8
    assert module.parameter_count == own + attended.parameter_count + mixed.parameter_count
    logits, norms = head(setting()), norm(setting(), added=False).saved
    inside = norms + norms + attended.activations.none + mixed.activations.none + logits.activations.none
    assert {module.activations.under(policy) for policy in Recompute} == {inside.times(2)}
    assert module.working == logits.working + Saved(sequence=2 * 8 * T)
    # what the layers gave, and what each pass gives
    assert module.boundary_bytes == 3 * 2 * 8 * T
    assert (module.tensor_parallel_collectives, module.tensor_parallel_bytes) == (2 * 3, 2 * 8 * T)
    assert (module.expert_parallel_bytes, module.experts_per_token) == (2 * 2 * 2 * 8 * T, 2)
    assert (module.repeat, module.unit) == (1, False)
    counts = sorted(o.count for o in module.operators if o.n)
    assert counts == [2] * (len(counts) - 1) + [4]


def test_a_module_of_attention_alone_exchanges_nothing() -> None:
    (module,) = next_tokens(setting(next_tokens=NextTokens(pattern="*", depth=1)))
    assert (module.expert_parallel_bytes, module.experts_per_token) == (0, 0)
    assert next_tokens(setting(next_tokens=None)) == ()


def source(name: str) -> TransformerSource:
    found = load_source(name)
    assert isinstance(found, TransformerSource)
    return found


def spec(name: str, *, further: bool = True, kernels: Kernels = Kernels.FUSED) -> ModelSpec:
    found = source(name)
    if not further:
        found = replace(found, architecture=replace(found.architecture, next_tokens=None))
    return found.at(LENGTH, Precision.BF16_MIXED, kernels)


@pytest.mark.parametrize(
    ("name", "letters"),
    # 54 Mamba-2, 54 MLP and 10 attention layers: research.nvidia.com/labs/adlr/nemotronh; 23, 23 and 6, and
    # 40, 40 and 8 as counted in the reports, arXiv:2512.20848 and arXiv:2604.12374
    [
        ("nemotron-h-8b", {"M": 24, "-": 24, "*": 4}),
        ("nemotron-h-56b", {"M": 54, "-": 54, "*": 10}),
        ("nemotron-3-nano", {"M": 23, "E": 23, "*": 6}),
        ("nemotron-3-super", {"M": 40, "E": 40, "*": 8}),
        ("nemotron-3-ultra", {"M": 48, "E": 48, "*": 12}),
    ],
)
def test_layers_are_the_published_ones(name: str, letters: dict[str, int]) -> None:
    pattern = source(name).architecture.pattern
    assert {letter: pattern.count(letter) for letter in set(pattern)} == letters


@pytest.mark.parametrize(
    ("name", "billions"),
    # 3.6B with embeddings: arXiv:2512.20848; 12.7B: arXiv:2604.12374; 55B: arXiv:2606.15007
    [("nemotron-3-nano", 3.6), ("nemotron-3-super", 12.7), ("nemotron-3-ultra", 55)],
)
def test_a_token_uses_the_published_parameters(name: str, billions: float) -> None:
    assert spec(name, further=False).active_parameters == pytest.approx(1e9 * billions, rel=0.02)


@pytest.mark.parametrize(("name", "billions"), [("nemotron-3-super", 120.6), ("nemotron-3-ultra", 550)])
def test_the_module_for_further_tokens_is_not_among_the_published_parameters(
    name: str, billions: float
) -> None:
    assert spec(name, further=False).parameters == pytest.approx(1e9 * billions, rel=0.002)


def test_the_module_runs_as_often_as_it_predicts() -> None:
    whole, without = spec("nemotron-3-super"), spec("nemotron-3-super", further=False)
    (module,) = (block for block in whole.blocks if block.name == "next tokens")
    head = without.blocks[-1]
    # joined from two widths, layers "*E" and the head, twice
    attention, experts = (
        next(block for block in without.blocks if block.name == name)
        for name in ("attention layer", "expert layer")
    )
    joining = 2 * LENGTH * 4096 * 2 * 4096
    assert module.flops == pytest.approx(2 * (joining + attention.flops + experts.flops + head.flops))
    assert whole.flops - without.flops == pytest.approx(module.flops)
    assert module.parameter_count == whole.parameters - without.parameters
    assert module.expert_parallel_bytes == 2 * experts.expert_parallel_bytes
    assert module.activations.none.loss == 2 * head.activations.none.loss
    assert not module.unit


def test_experts_get_tokens_of_the_latent_width() -> None:
    (experts,) = {
        block.expert_parallel_bytes: block
        for block in spec("nemotron-3-super").blocks
        if block.name == "expert layer"
    }.values()
    assert experts.expert_parallel_bytes == 22 * 2 * LENGTH * 1024
    grouped = [o for o in experts.operators if o.kind is OperatorKind.GROUPED_MATMUL]
    assert [(o.n, o.k) for o in grouped] == [(2688, 1024), (1024, 2688)]
    projections = [(o.n, o.k) for o in experts.operators if o.kind is OperatorKind.MATMUL]
    assert projections == [(512, 4096), (1024, 4096), (4096, 1024), (5376, 4096), (4096, 5376)]


def test_a_model_of_scans_alone_has_no_heads() -> None:
    model = spec("mamba2-2.7b")
    assert (model.heads, model.kv_heads, model.layers) == (None, None, 64)
    assert model.scans is not None
    assert model.scans.heads == 80


def test_what_is_taken_of_kernels_is_said() -> None:
    assert any("mamba-ssm" in caveat for caveat in spec("nemotron-h-8b").caveats)
    assert not any("mamba-ssm" in caveat for caveat in spec("llama-3.1-8b").caveats)
