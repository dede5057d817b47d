"""Presets against the modules that transformers builds on the meta device from the same sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from parastrat.profiles import model_names
from parastrat.sources import load_source
from parastrat.sources.architecture import Architecture
from parastrat.sources.presets import TransformerSource
from parastrat.stack import Kernels
from parastrat.workload import Precision

transformers = pytest.importorskip("transformers")

#: beginnings of names, longest first where one begins with another -> config and model class
CLASSES = {
    "bert": ("BertConfig", "BertForPreTraining"),
    "bloom": ("BloomConfig", "BloomForCausalLM"),
    "deepseek-v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM"),
    "deepseek-v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM"),
    "falcon": ("FalconConfig", "FalconForCausalLM"),
    "gemma-2b": ("GemmaConfig", "GemmaForCausalLM"),
    "gemma-7b": ("GemmaConfig", "GemmaForCausalLM"),
    "gemma-2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma-3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    "gpt-oss": ("GptOssConfig", "GptOssForCausalLM"),
    "kimi-k2": ("DeepseekV3Config", "DeepseekV3ForCausalLM"),
    "llama-4": ("Llama4TextConfig", "Llama4ForCausalLM"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
    "nemotron-3": ("NemotronConfig", "NemotronForCausalLM"),
    "nemotron-4": ("NemotronConfig", "NemotronForCausalLM"),
    "olmo-2": ("Olmo2Config", "Olmo2ForCausalLM"),
    "olmo": ("OlmoConfig", "OlmoForCausalLM"),
    "opt": ("OPTConfig", "OPTForCausalLM"),
    "phi": ("Phi3Config", "Phi3ForCausalLM"),
    "qwen2.5": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3-30b": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "qwen3-235b": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM"),
    "t5": ("T5Config", "T5ForConditionalGeneration"),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration"),
    "yi": ("LlamaConfig", "LlamaForCausalLM"),
}
#: no module of transformers has their shape
WITHOUT = (
    # test_convnext.py and test_diffusion.py build these
    "convnext",
    "dit",
    "gpt3-",
    "grok",
    "megatron",
    "mpt",
    "nemotron-",
    "resnet",
    "vit",
    "vtrain",
)


def classes(name: str) -> tuple[str, str] | None:
    return next((found for start, found in CLASSES.items() if name.startswith(start)), None)


def config_fields(a: Architecture) -> dict[str, Any]:
    """Return an architecture in the words of configs; each class takes those that it knows."""
    fields: dict[str, Any] = {
        "hidden_size": a.hidden,
        "num_hidden_layers": a.layers,
        "num_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "num_kv_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "d_kv": a.head_dim,
        "intermediate_size": a.ffn,
        "intermediate_size_mlp": a.ffn,
        "d_ff": a.ffn,
        "ffn_dim": a.ffn,
        "ffn_hidden_size": a.ffn,
        "word_embed_proj_dim": a.hidden,
        "vocab_size": a.vocab,
        "tie_word_embeddings": a.tied,
        # OPT adds two rows of its own; RoBERTa's table has them
        "max_position_embeddings": a.positions - 2 if a.rectified and a.positions else a.positions or 2048,
        "type_vocab_size": a.segments,
        "new_decoder_architecture": a.kv_heads > 1,
        "pad_token_id": 0,
        "d_model": a.hidden,
        "encoder_layers": a.encoder_layers,
        "decoder_layers": a.layers,
        "encoder_attention_heads": a.heads,
        "decoder_attention_heads": a.heads,
        "encoder_ffn_dim": a.ffn,
        "decoder_ffn_dim": a.ffn,
    }
    if a.audio:
        fields |= {"max_target_positions": a.positions, "num_mel_bins": a.audio.channels}
    if a.latent:
        fields |= {
            "q_lora_rank": a.latent.q_rank or None,
            "kv_lora_rank": a.latent.kv_rank,
            "qk_nope_head_dim": a.latent.nope_dim,
            "qk_rope_head_dim": a.latent.rope_dim,
            "v_head_dim": a.latent.v_dim,
        }
        del fields["head_dim"]
    return fields | (expert_fields(a) if a.experts else {})


def expert_fields(a: Architecture) -> dict[str, Any]:
    experts = a.experts
    assert experts is not None
    fields = {
        "num_experts": experts.count,
        "num_local_experts": experts.count,
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn,
        "n_shared_experts": experts.shared_ffn // experts.ffn,
        "first_k_dense_replace": experts.dense_layers,
        "interleave_moe_layer_step": experts.period,
    }
    # Llama 4 names its experts' width so, and its dense layers' otherwise
    return fields | ({"intermediate_size": experts.ffn} if not a.latent else {})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in model_names() if classes(name)])
def test_a_preset_counts_what_transformers_builds(name: str) -> None:
    source = load_source(name)
    assert isinstance(source, TransformerSource)
    found = classes(name)
    assert found is not None
    config_class, model_class = (getattr(transformers, each) for each in found)
    # Qwen3's mixture reads a width of heads that its config does not list
    known = {*config_class().to_dict()} | ({"head_dim"} if "Qwen3Moe" in found[0] else set())
    names = getattr(config_class, "attribute_map", {})
    fields = {
        names.get(field, field): value
        for field, value in config_fields(source.architecture).items()
        if names.get(field, field) in known
    }
    with torch.device("meta"):
        module = model_class(config_class(**fields))
    ours = source.at(8, Precision.FP32, Kernels.EAGER).parameters
    assert ours == sum(parameter.numel() for parameter in module.parameters())


def test_every_preset_is_built_or_known_to_have_no_module() -> None:
    assert {name for name in model_names() if not classes(name) and not name.startswith(WITHOUT)} == set()
