"""Small models of many architectures, with batches whose samples hold unequal numbers of targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCAB, LENGTH, CLASSES, SIDE = 64, 16, 10, 16
#: deep enough for two virtual stages on each of two pipeline ranks, and an embedding beside them
LAYERS = 4

#: greatest difference of a loss, and of a gradient as a share of its largest value
LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
_ZERO = 1e-6

Batch = tuple[Any, Any]


def widened(values: torch.Tensor) -> torch.Tensor:
    """Return what a model gives in fp32, or in fp64 where it computes in that."""
    return values if values.dtype is torch.float64 else values.float()


def difference(gradient: torch.Tensor, expected: torch.Tensor, largest: float) -> float:
    """Return how far a gradient is from what it should be, as a share of its largest value.

    Args:
        gradient: of one parameter.
        expected: of the same.
        largest: value of all gradients of the model: below a share of it a gradient is zero but for
            rounding, such as that of a key's bias, and its difference is a share of this instead.
    """
    scale = float(expected.abs().max())
    apart = float((gradient - expected).abs().max())
    return apart / (scale if scale > _ZERO * largest else largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, and what it is trained on."""

    name: str
    build: Callable[[], nn.Module]
    #: (step, samples) -> inputs and targets of a global batch
    batch: Callable[[int, int], Batch]
    loss_fn: Callable[[Any, torch.Tensor], torch.Tensor]
    #: optimizer steps
    steps: int = 20


def _drawn(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(step)


def _tokens(step: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the next ones; every sample leaves out another number of targets."""
    draw = _drawn(step)
    tokens = torch.randint(VOCAB, (samples, LENGTH + 1), generator=draw)
    targets = tokens[:, 1:].clone()
    for sample in range(samples):
        targets[sample, : (3 * sample + step) % (LENGTH - 2)] = -100
    return tokens[:, :-1].contiguous(), targets


def _text(step: int, samples: int) -> Batch:
    return _tokens(step, samples)


def _text_by_name(step: int, samples: int) -> Batch:
    inputs, targets = _tokens(step, samples)
    return {"input_ids": inputs}, targets


def _pairs_of_text(step: int, samples: int) -> Batch:
    inputs, targets = _tokens(step, samples)
    return {"input_ids": inputs, "decoder_input_ids": inputs.flip(1)}, targets


def _images(step: int, samples: int) -> Batch:
    draw = _drawn(step)
    images = torch.randn(samples, 3, SIDE, SIDE, generator=draw)
    return images, torch.randint(CLASSES, (samples,), generator=draw)


def _images_by_name(step: int, samples: int) -> Batch:
    images, targets = _images(step, samples)
    return {"pixel_values": images}, targets


def _maps(step: int, samples: int) -> Batch:
    draw = _drawn(step)
    images = torch.randn(samples, 3, SIDE, SIDE, generator=draw)
    return images, torch.randint(CLASSES, (samples, SIDE, SIDE), generator=draw)


def _vectors(step: int, samples: int) -> Batch:
    draw = _drawn(step)
    return torch.randn(samples, 32, generator=draw), torch.randint(CLASSES, (samples,), generator=draw)


def _token_loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return functional.cross_entropy(widened(logits).flatten(0, 1), targets.flatten())


def _class_loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return functional.cross_entropy(widened(logits), targets)


_NO_DROPOUT = {
    "attention_dropout": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attn_pdrop": 0.0,
    "dropout": 0.0,
    "dropout_rate": 0.0,
    "embd_pdrop": 0.0,
    "hidden_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "resid_pdrop": 0.0,
}


def _of_transformers(config: str, model: str, **sizes: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers  # noqa: PLC0415 - each rank of each cell loads what it needs

        module: nn.Module = getattr(transformers, model)(
            getattr(transformers, config)(**sizes, **_NO_DROPOUT)
        )
        return module

    return build


_DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GROUPED = {**_DECODER, "num_key_value_heads": 2, "head_dim": 8}


class UNet(nn.Module):
    """Two levels down, two up, with skips across."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.down = _convolved(3, width), _convolved(width, 2 * width)
        self.bottom = _convolved(2 * width, 2 * width)
        self.up, self.last = _convolved(4 * width, width), _convolved(2 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        down = self.down(functional.max_pool2d(first, 2))
        bottom = functional.interpolate(self.bottom(functional.max_pool2d(down, 2)), scale_factor=2)
        up = functional.interpolate(self.up(torch.cat([down, bottom], dim=1)), scale_factor=2)
        return self.head(self.last(torch.cat([first, up], dim=1)))


def _convolved(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())


class Recurrent(nn.Module):
    """Embedding, two LSTM layers, and a head."""

    def __init__(self, width: int = 32, vocabulary: int = VOCAB) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])


def _sequential() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(32, CLASSES))


def _subject(name: str, build: Callable[[], nn.Module], batch: Any, loss_fn: Any) -> Subject:
    return Subject(name=name, build=build, batch=batch, loss_fn=loss_fn)


def _causal(name: str, config: str, model: str, **sizes: Any) -> Subject:
    return _subject(name, _of_transformers(config, model, **sizes), _text_by_name, _token_loss)


_GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 32}
_OPT = {**_DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32}
_MIXTURE = {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
_T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_VIT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": 4,
    "num_labels": CLASSES,
}
_RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [16, 32],
    "depths": [2, 2],
    "layer_type": "basic",
    "num_labels": CLASSES,
}

SUBJECTS: dict[str, Subject] = {
    subject.name: subject
    for subject in (
        _causal("llama", "LlamaConfig", "LlamaForCausalLM", **_GROUPED),
        _causal("qwen3", "Qwen3Config", "Qwen3ForCausalLM", **_GROUPED),
        _causal("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", **_GROUPED, sliding_window=8),
        _causal("gpt2", "GPT2Config", "GPT2LMHeadModel", **_GPT2),
        _causal("gpt-neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", **_DECODER),
        _causal("opt", "OPTConfig", "OPTForCausalLM", **_OPT),
        _causal("phi3", "Phi3Config", "Phi3ForCausalLM", **_GROUPED, pad_token_id=0),
        _causal("mixtral", "MixtralConfig", "MixtralForCausalLM", **_MIXTURE),
        _causal("bert", "BertConfig", "BertForMaskedLM", **_DECODER),
        _subject(
            "t5",
            _of_transformers("T5Config", "T5ForConditionalGeneration", **_T5, decoder_start_token_id=0),
            _pairs_of_text,
            _token_loss,
        ),
        _subject(
            "vit",
            _of_transformers("ViTConfig", "ViTForImageClassification", **_VIT),
            _images_by_name,
            _class_loss,
        ),
        _subject(
            "resnet",
            _of_transformers("ResNetConfig", "ResNetForImageClassification", **_RESNET),
            _images_by_name,
            _class_loss,
        ),
        _subject("unet", UNet, _maps, _class_loss),
        _subject("lstm", Recurrent, _text, _token_loss),
        _subject("sequential", _sequential, _vectors, _class_loss),
    )
}
