"""Small models of families that are no decoders, as transformers builds them, with their closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import transformers
from sources.test_diffusion import SMALL as DIFFUSION
from sources.test_diffusion import Network
from torch import nn
from torch.nn import functional

from parastrat.model import ModelSpec
from parastrat.runtime.tracing.trace import TracedSource, traced_module
from parastrat.sources import load_source
from parastrat.sources.architecture import Architecture, Audio, Image
from parastrat.sources.convnext import ConvNeXt
from parastrat.sources.convolutional import ResidualNetwork
from parastrat.sources.diffusion import DiffusionTransformer
from parastrat.sources.presets import TransformerSource
from parastrat.sources.transformer import transformer
from parastrat.stack import Kernels
from parastrat.workload import Precision

TOKENS, VOCAB, CLASSES = 64, 512, 10
_WORDS = dict.fromkeys(("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id"), 0)
_SIZES = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
_STACKS = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 4, "vocab_size": VOCAB}
_SPEECH = {
    "d_model": 128,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "vocab_size": VOCAB,
    "num_mel_bins": 20,
    "max_source_positions": 96,
    "max_target_positions": 128,
    "dropout": 0.0,
}

Closed = Architecture | ResidualNetwork | ConvNeXt | DiffusionTransformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A small model: its module, what its closed form takes, and how a batch is made."""

    build: Callable[[], nn.Module]
    closed: Closed
    batch: Callable[[int, int], dict[str, torch.Tensor]]
    #: tokens of a sample; None where samples bring their own
    length: int | None = None

    def at(self, precision: Precision, kernels: Kernels = Kernels.EAGER) -> ModelSpec:
        """Return the closed form."""
        if isinstance(self.closed, Architecture):
            return transformer(self.closed, self.length, precision, kernels, "small")
        return self.closed.at(precision, kernels, "small")

    def source(self, *, divides: bool) -> TracedSource:
        """Return the module as a source, which is built on no device.

        Args:
            divides: look at what tensor parallelism divides, which takes a second or two.
        """
        with torch.device("meta"):
            module = self.build()
        return traced_module(module, ref="small", sample_inputs=self.batch, divides=divides)


def _preset(name: str, **changes: Any) -> Architecture:
    """Return a preset's architecture in small."""
    source = load_source(name)
    assert isinstance(source, TransformerSource)
    sizes = {"layers": 3, "hidden": 128, "heads": 4, "kv_heads": 4, "head_dim": 32, "ffn": 512}
    both = {"encoder_layers": 3} if source.architecture.encoder_layers else {}
    tokens: dict[str, Any] = {} if source.architecture.image else {"vocab": VOCAB}
    return replace(source.architecture, **(sizes | both | tokens | changes))


def _whole(samples: int, *sides: int) -> torch.Tensor:
    return torch.zeros(samples, *sides, dtype=torch.long)


def _tokens(*names: str) -> Callable[[int, int], dict[str, torch.Tensor]]:
    return lambda samples, length: {name: _whole(samples, length) for name in names}


def _images(side: int) -> Callable[[int, int], dict[str, torch.Tensor]]:
    return lambda samples, _: {
        "pixel_values": torch.zeros(samples, 3, side, side),
        "labels": _whole(samples),
    }


def _of(config: str, model: str, **sizes: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**sizes))


def _bert_batch(samples: int, length: int) -> dict[str, torch.Tensor]:
    return {**_tokens("input_ids", "labels")(samples, length), "next_sentence_label": _whole(samples)}


def _speech_batch(samples: int, length: int) -> dict[str, torch.Tensor]:
    return {"input_features": torch.zeros(samples, 20, 192), "labels": _whole(samples, length)}


def _latents(samples: int, _: int) -> dict[str, torch.Tensor]:
    side = DIFFUSION.latent_size
    return {
        "latents": torch.zeros(samples, DIFFUSION.channels, side, side),
        "level": torch.zeros(samples, 256),
        "label": _whole(samples),
    }


FAMILIES = {
    "t5": Small(
        build=_of("T5Config", "T5ForConditionalGeneration", **_STACKS, **_WORDS),
        closed=_preset("t5-base"),
        batch=_tokens("input_ids", "decoder_input_ids", "labels"),
        length=TOKENS,
    ),
    "whisper": Small(
        build=_of("WhisperConfig", "WhisperForConditionalGeneration", **_SPEECH, **_WORDS),
        closed=_preset("whisper-tiny", positions=128, audio=Audio(channels=20, frames=192)),
        batch=_speech_batch,
        length=TOKENS,
    ),
    "bert": Small(
        build=_of(
            "BertConfig", "BertForPreTraining", **_SIZES, vocab_size=VOCAB, max_position_embeddings=128
        ),
        closed=_preset("bert-base", positions=128),
        batch=_bert_batch,
        length=TOKENS,
    ),
    "roberta": Small(
        build=_of(
            "RobertaConfig",
            "RobertaForMaskedLM",
            **_SIZES,
            vocab_size=VOCAB,
            max_position_embeddings=128,
            type_vocab_size=1,
        ),
        closed=_preset("roberta-base", positions=128),
        batch=_tokens("input_ids", "labels"),
        length=TOKENS,
    ),
    "vit": Small(
        build=_of(
            "ViTConfig",
            "ViTForImageClassification",
            **_SIZES,
            image_size=64,
            patch_size=8,
            num_labels=CLASSES,
        ),
        closed=_preset("vit-b-16", image=Image(size=64, patch=8, channels=3, classes=CLASSES)),
        batch=_images(64),
    ),
    "dit": Small(
        build=lambda: Network(DIFFUSION),
        closed=DIFFUSION,
        batch=_latents,
    ),
    "resnet": Small(
        build=_of("ResNetConfig", "ResNetForImageClassification", num_labels=CLASSES, depths=[2, 3, 2, 2]),
        closed=ResidualNetwork(
            name="small", depths=(2, 3, 2, 2), image_size=224, channels=3, classes=CLASSES
        ),
        batch=_images(224),
    ),
    "convnext": Small(
        build=_of(
            "ConvNextConfig",
            "ConvNextForImageClassification",
            num_labels=CLASSES,
            depths=[2, 2, 3, 2],
            hidden_sizes=[32, 64, 128, 256],
        ),
        closed=ConvNeXt(
            name="small",
            depths=(2, 2, 3, 2),
            widths=(32, 64, 128, 256),
            image_size=64,
            channels=3,
            classes=CLASSES,
        ),
        batch=_images(64),
    ),
}


@cache
def _source(name: str, *, divides: bool) -> TracedSource:
    return FAMILIES[name].source(divides=divides)


@cache
def both(name: str, precision: Precision, *, divides: bool = False) -> tuple[ModelSpec, ModelSpec]:
    """Return a family's closed form, and the trace of its module."""
    small, source = FAMILIES[name], _source(name, divides=divides)
    with patch.object(functional, "layer_norm", _as_on_cuda):
        return small.at(precision), source.at(small.length, precision, Kernels.EAGER)


_layer_norm = functional.layer_norm


def _as_on_cuda(inputs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Run a layer norm in fp32, as autocast of CUDA does; that of CPUs, which is traced, does not."""
    if not torch.is_autocast_enabled("cpu"):
        return _layer_norm(inputs, *args, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return _layer_norm(inputs.float(), *args, **kwargs)
