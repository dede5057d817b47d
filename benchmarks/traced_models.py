"""Architectures for traced.py: sizes of their configs' defaults, or nearly, with fewer layers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from parity_models import Recurrent, UNet
from torch import nn
from torch.nn import functional

from parastrat.runtime.caches import without_caches

_DROPOUTS = re.compile(r"dropout|drop_rate|pdrop|drop_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, and what it is called with; None: it takes no tokens."""

    build: Callable[[], nn.Module]
    samples: int
    length: int | None = None
    inputs: Callable[[int, int | None], Any] | None = None


def of_transformers(
    config: str, model: str, samples: int, length: int | None = None, inputs: Any = None, **sizes: Any
) -> Subject:
    def build() -> nn.Module:
        made = getattr(transformers, config)(**sizes)
        for name, value in vars(made).items():
            if _DROPOUTS.search(name) and isinstance(value, float):
                setattr(made, name, 0.0)
        module: nn.Module = getattr(transformers, model)(made)
        without_caches(module)  # as auto_parallelize does
        return module

    return Subject(build=build, samples=samples, length=length, inputs=inputs)


class Adapter(nn.Module):
    """A frozen layer beside a product of low rank that is trained."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(requires_grad=False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


def adapted(build: Callable[[], nn.Module], rank: int, *names: str) -> nn.Module:
    """Return a model that is frozen but for adapters at the layers of these names."""
    module = build().requires_grad_(requires_grad=False)
    for part in list(module.modules()):
        for name in names:
            if isinstance(getattr(part, name, None), nn.Linear):
                setattr(part, name, Adapter(getattr(part, name), rank))
    return module


class Modulated(nn.Module):
    """A layer of a diffusion transformer: attention and MLP, scaled and shifted by what conditions them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: torch.Tensor, *, condition: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = self.modulation(functional.silu(condition))[:, None].chunk(6, -1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = parts
        y = self.norm1(x) * (1 + scale) + shift
        query, key, value = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(query, key, value)
        x = x + gate * self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x) * (1 + mlp_scale) + mlp_shift
        return x + mlp_gate * self.down(functional.gelu(self.up(y), approximate="tanh")), None


class Diffusion(nn.Module):
    """A diffusion transformer: three inputs, layers with keywords and tuples, noise and variance back."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1000, width)
        self.layers = nn.ModuleList(Modulated(width, width // 64) for _ in range(layers))
        self.out = nn.Linear(width, 2 * 2 * 2 * 4)

    def forward(
        self, latents: torch.Tensor, *, times: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rates = torch.exp(-torch.arange(128, device=times.device) / 14)
        angles = times[:, None].float() * rates
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1)) + self.classes(labels)
        x = self.patches(latents).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x, _ = layer(x, condition=condition)
        noise, variance = self.out(x).chunk(2, -1)
        return noise, variance


def _images(samples: int, _length: int | None) -> torch.Tensor:
    return torch.zeros(samples, 3, 64, 64)


def _tokens(samples: int, length: int | None) -> torch.Tensor:
    return torch.zeros(samples, length or 64, dtype=torch.long)


def noised(samples: int, _length: int | None) -> dict[str, torch.Tensor]:
    whole = torch.zeros(samples, dtype=torch.long)
    return {"latents": torch.zeros(samples, 4, 32, 32), "times": whole, "labels": whole.clone()}


def _captioned(samples: int, length: int | None) -> dict[str, Any]:
    ids = torch.zeros(samples, length or 32, dtype=torch.long)
    return {"input_ids": ids, "pixel_values": torch.zeros(samples, 3, 224, 224), "return_loss": True}


def _told(samples: int, length: int | None, seen: int) -> dict[str, Any]:
    """Ids of which some stand for an image, and what to predict."""
    ids = torch.zeros(samples, length or 128, dtype=torch.long)
    ids[:, 1 : 1 + seen] = _IMAGE
    return {"input_ids": ids, "labels": ids.clone()}


def _seen(samples: int, length: int | None) -> dict[str, Any]:
    return _told(samples, length, _SIDE**2) | {"pixel_values": torch.zeros(samples, 3, *_EDGES)}


def _patches(samples: int, length: int | None) -> dict[str, Any]:
    grid, merged, frames = (1, 2 * _SIDE, 2 * _SIDE), _SIDE**2, 2
    told = _told(samples, length, merged)
    return told | {
        "pixel_values": torch.zeros(samples * 4 * merged, 3 * frames * _PATCH**2),
        "image_grid_thw": torch.tensor([grid]).repeat(samples, 1),
        "mm_token_type_ids": (told["input_ids"] == _IMAGE).int(),
    }


def _sized(samples: int, length: int | None) -> dict[str, Any]:
    images = torch.zeros(samples, 3, *_EDGES)
    sizes = torch.tensor([_EDGES]).repeat(samples, 1)
    return _told(samples, length, _SIDE**2 // 4) | {"pixel_values": images, "image_sizes": sizes}


#: the id of a patch of an image; patches along an image's edge, and pixels along a patch's
_IMAGE, _SIDE, _PATCH = 7999, 8, 14
_EDGES = (_SIDE * _PATCH, _SIDE * _PATCH)
_SMALL_VOCAB = {"vocab_size": 8000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LAYERS = {"num_hidden_layers": 4}
_MEDIUM = {**_SMALL_VOCAB, **_LAYERS, "hidden_size": 512, "num_attention_heads": 8}
_EYES = {
    **_LAYERS,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 6,
    "image_size": _EDGES[0],
    "patch_size": _PATCH,
}
_OPT = of_transformers(
    "OPTConfig", "OPTForCausalLM", 4, 256, **_MEDIUM, ffn_dim=2048, word_embed_proj_dim=512
)
SUBJECTS: dict[str, Subject] = {
    "gpt2": of_transformers("GPT2Config", "GPT2LMHeadModel", 4, 256, n_layer=4, **_SMALL_VOCAB),
    "gpt-neox": of_transformers(
        "GPTNeoXConfig", "GPTNeoXForCausalLM", 4, 256, intermediate_size=2048, **_MEDIUM
    ),
    "opt": _OPT,
    "gemma3": of_transformers(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        4,
        256,
        intermediate_size=1024,
        num_key_value_heads=4,
        head_dim=64,
        **_MEDIUM,
    ),
    "mixtral": of_transformers(
        "MixtralConfig",
        "MixtralForCausalLM",
        4,
        256,
        intermediate_size=512,
        num_key_value_heads=4,
        num_local_experts=4,
        **_MEDIUM,
    ),
    "bloom": of_transformers(
        "BloomConfig", "BloomForCausalLM", 4, 256, hidden_size=512, n_layer=4, n_head=8, **_SMALL_VOCAB
    ),
    "bert": of_transformers("BertConfig", "BertForMaskedLM", 8, 256, **_LAYERS),
    "deberta-v2": of_transformers(
        "DebertaV2Config", "DebertaV2ForMaskedLM", 4, 128, **_MEDIUM, intermediate_size=2048
    ),
    "t5": of_transformers(
        "T5Config",
        "T5ForConditionalGeneration",
        4,
        256,
        num_layers=2,
        vocab_size=8000,
        decoder_start_token_id=0,
    ),
    "bart": of_transformers(
        "BartConfig",
        "BartForConditionalGeneration",
        4,
        128,
        encoder_layers=2,
        decoder_layers=2,
        d_model=512,
    ),
    "vit": of_transformers("ViTConfig", "ViTForImageClassification", 8, **_LAYERS),
    "swin": of_transformers("SwinConfig", "SwinForImageClassification", 4),
    "resnet-50": of_transformers("ResNetConfig", "ResNetForImageClassification", 4),
    "convnext-t": of_transformers("ConvNextConfig", "ConvNextForImageClassification", 4),
    "whisper-t": of_transformers(
        "WhisperConfig", "WhisperForConditionalGeneration", 1, 128, encoder_layers=2, decoder_layers=2
    ),
    "clip": of_transformers(
        "CLIPConfig", "CLIPModel", 4, 32, inputs=_captioned, text_config=_LAYERS, vision_config=_LAYERS
    ),
    "llava": of_transformers(
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        4,
        128,
        inputs=_seen,
        text_config={"model_type": "llama", "num_key_value_heads": 4, **_MEDIUM},
        vision_config={"model_type": "clip_vision_model", **_EYES},
        image_token_index=_IMAGE,
    ),
    "qwen2-vl": of_transformers(
        "Qwen2VLConfig",
        "Qwen2VLForConditionalGeneration",
        4,
        128,
        inputs=_patches,
        text_config={
            "num_key_value_heads": 4,
            "intermediate_size": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
            **_MEDIUM,
        },
        vision_config={"depth": 4, "embed_dim": 384, "hidden_size": 512, "num_heads": 6},
        image_token_id=_IMAGE,
    ),
    "mistral-3": of_transformers(
        "Mistral3Config",
        "Mistral3ForConditionalGeneration",
        4,
        128,
        inputs=_sized,
        text_config={"model_type": "mistral", "num_key_value_heads": 4, "head_dim": 64, **_MEDIUM},
        vision_config={"model_type": "pixtral", "head_dim": 64, **_EYES},
        image_token_index=_IMAGE,
    ),
    "deepseek-v3": of_transformers(
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        4,
        256,
        intermediate_size=1024,
        moe_intermediate_size=256,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        q_lora_rank=256,
        kv_lora_rank=128,
        num_key_value_heads=8,
        first_k_dense_replace=1,
        **_MEDIUM,
    ),
    "mamba2": of_transformers(
        "Mamba2Config",
        "Mamba2ForCausalLM",
        4,
        256,
        num_heads=16,
        hidden_size=512,
        num_hidden_layers=4,
        **_SMALL_VOCAB,
    ),
    "opt-lora": Subject(build=partial(adapted, _OPT.build, 16, "q_proj", "v_proj"), samples=4, length=256),
    "dit": Subject(build=partial(Diffusion, 384, 6), samples=8, inputs=noised),
    "unet": Subject(build=partial(UNet, 32), samples=8, inputs=_images),
    "lstm": Subject(build=partial(Recurrent, 256, 2000), samples=16, length=64, inputs=_tokens),
}
