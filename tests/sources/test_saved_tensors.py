"""The eager closed form against the tensors that autograd saves in Hugging Face's own modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import scan_kernel
import torch
from torch import nn
from torch.nn import functional

from parastrat.model import Family
from parastrat.sources.architecture import (
    Architecture,
    Audio,
    Experts,
    Image,
    Norm,
    QkNorm,
    Scores,
    StateSpace,
)
from parastrat.sources.transformer import transformer
from parastrat.stack import Kernels
from parastrat.workload import Precision

transformers = pytest.importorskip("transformers")

BATCH, TOKENS, VOCAB = 2, 64, 512

COMMON = {"layers": 2, "hidden": 128, "heads": 8, "head_dim": 16, "vocab": VOCAB, "name": "tiny"}
BIASED = {"qkv_bias": True, "output_bias": True, "ffn_bias": True, "norm": Norm.LAYER, "gated": False}
LLAMA = Architecture(
    **COMMON, family=Family.DECODER, ffn=320, kv_heads=4, norm=Norm.RMS, gated=True, tied=False
)
LLAMA_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": VOCAB,
}


def llama() -> tuple[nn.Module, Architecture]:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA_SIZES)), LLAMA


def qwen3() -> tuple[nn.Module, Architecture]:
    config = transformers.Qwen3Config(**LLAMA_SIZES, head_dim=16)
    return transformers.Qwen3ForCausalLM(config), replace(LLAMA, qk_norm=QkNorm.HEAD)


def mixtral() -> tuple[nn.Module, Architecture]:
    config = transformers.MixtralConfig(**LLAMA_SIZES, num_local_experts=4, num_experts_per_tok=2)
    experts = Experts(count=4, top_k=2, ffn=320)
    return transformers.MixtralForCausalLM(config), replace(LLAMA, experts=experts)


def gemma2() -> tuple[nn.Module, Architecture]:
    config = transformers.Gemma2Config(**LLAMA_SIZES, head_dim=16, use_cache=False)
    architecture = replace(
        LLAMA,
        norm=Norm.RMS_FP32,
        tied=True,
        layer_norms=4,
        scores=Scores.CAPPED,
        capped_logits=True,
    )
    return transformers.Gemma2ForCausalLM(config), architecture


def gpt_oss() -> tuple[nn.Module, Architecture]:
    config = transformers.GptOssConfig(
        **LLAMA_SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2, use_cache=False
    )
    experts = Experts(count=4, top_k=2, ffn=320, router_bias=True, bias=True, composite_activation=True)
    architecture = replace(
        LLAMA,
        norm=Norm.RMS_FP32,
        experts=experts,
        qkv_bias=True,
        output_bias=True,
        sinks=True,
        scores=Scores.SINKS,
    )
    return transformers.GptOssForCausalLM(config), architecture


def bloom() -> tuple[nn.Module, Architecture]:
    config = transformers.BloomConfig(
        hidden_size=128,
        n_layer=2,
        n_head=8,
        vocab_size=VOCAB,
        hidden_dropout=0,
        attention_dropout=0,
        use_cache=False,
    )
    architecture = Architecture(
        **COMMON,
        **BIASED,
        family=Family.DECODER,
        ffn=512,
        kv_heads=8,
        tied=True,
        fused_qkv=True,
        embedding_norm=True,
        scores=Scores.PLAIN,
    )
    return transformers.BloomForCausalLM(config), architecture


def llama4() -> tuple[nn.Module, Architecture]:
    config = transformers.Llama4TextConfig(
        **LLAMA_SIZES,
        head_dim=16,
        intermediate_size_mlp=320,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        use_qk_norm=False,
        use_cache=False,
    )
    experts = Experts(count=4, top_k=1, ffn=320, shared_ffn=320, every_token=True)
    return transformers.Llama4ForCausalLM(config), replace(LLAMA, experts=experts)


def gpt2() -> tuple[nn.Module, Architecture]:
    config = transformers.GPT2Config(
        n_embd=128,
        n_layer=2,
        n_head=8,
        vocab_size=VOCAB,
        n_positions=128,
        bos_token_id=0,
        eos_token_id=0,
        # as in trainings
        use_cache=False,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    architecture = Architecture(
        **COMMON,
        **BIASED,
        family=Family.DECODER,
        ffn=512,
        kv_heads=8,
        tied=True,
        fused_qkv=True,
        composite_activation=True,
        positions=128,
    )
    return transformers.GPT2LMHeadModel(config), architecture


def bert() -> tuple[nn.Module, Architecture]:
    config = transformers.BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        intermediate_size=512,
        vocab_size=VOCAB,
        max_position_embeddings=128,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    architecture = Architecture(
        **COMMON,
        **BIASED,
        family=Family.ENCODER,
        ffn=512,
        kv_heads=8,
        tied=True,
        positions=128,
        segments=2,
        transform_head=True,
        pooler=True,
    )
    return transformers.BertForPreTraining(config), architecture


def vit() -> tuple[nn.Module, Architecture]:
    config = transformers.ViTConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        intermediate_size=512,
        image_size=64,
        patch_size=8,
        num_labels=10,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    architecture = Architecture(
        **(COMMON | {"vocab": 1}),
        **BIASED,
        family=Family.VISION_TRANSFORMER,
        ffn=512,
        kv_heads=8,
        tied=False,
        image=Image(size=64, patch=8, channels=3, classes=10),
    )
    return transformers.ViTForImageClassification(config), architecture


def t5() -> tuple[nn.Module, Architecture]:
    config = transformers.T5Config(
        d_model=128,
        d_kv=16,
        d_ff=512,
        num_layers=2,
        num_heads=8,
        vocab_size=VOCAB,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    architecture = Architecture(
        **COMMON,
        family=Family.ENCODER_DECODER,
        encoder_layers=2,
        ffn=512,
        kv_heads=8,
        norm=Norm.RMS,
        gated=False,
        rectified=True,
        tied=True,
        relative_buckets=32,
    )
    return transformers.T5ForConditionalGeneration(config), architecture


def whisper() -> tuple[nn.Module, Architecture]:
    config = transformers.WhisperConfig(
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        vocab_size=VOCAB,
        num_mel_bins=20,
        max_source_positions=96,
        max_target_positions=128,
        **dict.fromkeys(("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id"), 0),
    )
    architecture = Architecture(
        **COMMON,
        **BIASED,
        family=Family.ENCODER_DECODER,
        encoder_layers=2,
        ffn=512,
        kv_heads=8,
        key_bias=False,
        heads_first=True,
        tied=True,
        positions=128,
        audio=Audio(channels=20, frames=192),
    )
    return transformers.WhisperForConditionalGeneration(config), architecture


STATE_SPACE = StateSpace(heads=8, head_dim=32, state=16, groups=4, chunk=32)


def nemotron_h() -> tuple[nn.Module, Architecture]:
    config = transformers.NemotronHConfig(
        hidden_size=128,
        hybrid_override_pattern="MEM*M-",
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=16,
        intermediate_size=320,
        vocab_size=VOCAB,
        mamba_num_heads=8,
        mamba_head_dim=32,
        ssm_state_size=16,
        n_groups=4,
        chunk_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        moe_shared_expert_intermediate_size=192,
        moe_latent_size=64,
        use_cache=False,
    )
    architecture = replace(
        LLAMA,
        layers=6,
        norm=Norm.RMS_FP32,
        gated=False,
        rotary=False,
        pattern="MEM*M-",
        state_space=STATE_SPACE,
        experts=Experts(count=4, top_k=2, ffn=96, shared_ffn=192, latent=64, fp32_router=True),
    )
    return transformers.NemotronHForCausalLM(config), architecture


def mamba2() -> tuple[nn.Module, Architecture]:
    config = transformers.Mamba2Config(
        hidden_size=128,
        num_hidden_layers=3,
        vocab_size=VOCAB,
        num_heads=8,
        head_dim=32,
        state_size=16,
        n_groups=4,
        chunk_size=32,
        use_cache=False,
    )
    architecture = replace(
        LLAMA,
        layers=3,
        heads=0,
        kv_heads=0,
        ffn=0,
        gated=False,
        fp32_stream=True,
        pattern="MMM",
        state_space=STATE_SPACE,
    )
    return transformers.Mamba2ForCausalLM(config), architecture


class UnmaskedAttention(torch.overrides.TorchFunctionMode):
    """Sends biased attention to the kernel that a GPU would take, which keeps no scores."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is functional.scaled_dot_product_attention:
            kwargs["attn_mask"] = None
        return func(*args, **kwargs)


def batch(architecture: Architecture, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    if architecture.image is not None:
        return {
            "pixel_values": torch.randn(BATCH, 3, 64, 64, dtype=dtype),
            "labels": torch.zeros(BATCH, dtype=torch.long),
        }
    tokens = torch.randint(0, VOCAB, (BATCH, TOKENS))
    if architecture.audio is not None:
        return {"input_features": torch.randn(BATCH, 20, 192, dtype=dtype), "labels": tokens}
    more = {"next_sentence_label": torch.zeros(BATCH, dtype=torch.long)} if architecture.pooler else {}
    return {"input_ids": tokens, "labels": tokens, **more}


def saved_by_autograd(model: nn.Module, inputs: dict[str, torch.Tensor]) -> int:
    """Return the bytes that backward reads, and those of a loop's batch in fp32 beside short inputs."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage().data_ptr()
        if storage not in own:
            kept[storage] = tensor
        return tensor

    with UnmaskedAttention(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**inputs)
        # the tensors are alive, so no address stands for two storages
        saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    return saved + sum(4 * each.numel() for each in inputs.values() if each.dtype is torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    ("build", "tolerance"),
    [
        (llama, 0.005),
        (qwen3, 0.005),
        (mixtral, 0.01),
        (gemma2, 0.01),
        (gpt_oss, 0.02),
        (bloom, 0.005),
        (llama4, 0.02),
        (gpt2, 0.005),
        (bert, 0.005),
        (vit, 0.005),
        (t5, 0.025),
        (whisper, 0.005),
        (nemotron_h, 0.01),
        (mamba2, 0.01),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_closed_form_is_what_autograd_saves(
    build: Callable[[], tuple[nn.Module, Architecture]],
    tolerance: float,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scan_kernel.put_in_place(monkeypatch)
    module, architecture = build()
    precision = Precision.FP32 if dtype is torch.float32 else Precision.BF16_MIXED
    model = transformer(architecture, TOKENS, precision, Kernels.EAGER, "tiny")
    assert model.parameters == sum(parameter.numel() for parameter in module.parameters())
    saved = saved_by_autograd(module.to(dtype).train(), batch(architecture, dtype))
    kept = ((block.activations.none, block.repeat) for block in model.blocks)
    # the biases left out above are as large for any number of samples: test_beside_traces.py
    closed = BATCH * sum((each.total - each.fixed) * repeat for each, repeat in kept)
    assert closed == pytest.approx(saved, rel=tolerance)
