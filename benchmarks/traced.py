"""Traced models beside real ones: the peak of a step that is estimated, and that of a step that runs.

Usage: python benchmarks/traced.py [NAME...]

Architectures of transformers in the sizes of their configs' defaults, or nearly, with fewer layers, and two
of torch's own, none a twin of another. The estimate is that of one device, from a trace on fake tensors,
without what an accelerator's context and allocator add. The step runs in fp32 on the CPU with AdamW, real
tensors watched by torch's MemTracker.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from parity_models import Recurrent, UNet
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.plan import Backend, Mesh, Plan
from parastrat.profiles import load_hardware, load_stack
from parastrat.runtime.example_inputs import made
from parastrat.runtime.example_loss import loss_of, read_by_loss
from parastrat.runtime.trace import TracedSource, traced_module
from parastrat.units import MIB
from parastrat.workload import Optimizer, Precision, Workload

#: no device of its own has a say: only bytes are read
_ON = "h100-sxm5x1"
_DROPOUTS = re.compile(r"dropout|drop_rate|pdrop|drop_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, and what it is called with; None: it takes no tokens."""

    build: Callable[[], nn.Module]
    samples: int
    length: int | None = None
    inputs: Callable[[int, int | None], Any] | None = None


def _of(config: str, model: str, samples: int, length: int | None = None, **sizes: Any) -> Subject:
    def build() -> nn.Module:
        made = getattr(transformers, config)(**sizes)
        for name, value in vars(made).items():
            if _DROPOUTS.search(name) and isinstance(value, float):
                setattr(made, name, 0.0)
        module: nn.Module = getattr(transformers, model)(made)
        module.config.use_cache = False
        return module

    return Subject(build=build, samples=samples, length=length)


def _images(samples: int, _length: int | None) -> torch.Tensor:
    return torch.zeros(samples, 3, 64, 64)


def _tokens(samples: int, length: int | None) -> torch.Tensor:
    return torch.zeros(samples, length or 64, dtype=torch.long)


_SMALL_VOCAB = {"vocab_size": 8000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LAYERS = {"num_hidden_layers": 4}
_MEDIUM = {**_SMALL_VOCAB, **_LAYERS, "hidden_size": 512, "num_attention_heads": 8}
SUBJECTS: dict[str, Subject] = {
    "gpt2": _of("GPT2Config", "GPT2LMHeadModel", 4, 256, n_layer=4, **_SMALL_VOCAB),
    "gpt-neox": _of("GPTNeoXConfig", "GPTNeoXForCausalLM", 4, 256, intermediate_size=2048, **_MEDIUM),
    "opt": _of("OPTConfig", "OPTForCausalLM", 4, 256, **_MEDIUM, ffn_dim=2048, word_embed_proj_dim=512),
    "gemma3": _of(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        4,
        256,
        intermediate_size=1024,
        num_key_value_heads=4,
        head_dim=64,
        **_MEDIUM,
    ),
    "mixtral": _of(
        "MixtralConfig",
        "MixtralForCausalLM",
        4,
        256,
        intermediate_size=512,
        num_key_value_heads=4,
        num_local_experts=4,
        **_MEDIUM,
    ),
    "bloom": _of(
        "BloomConfig", "BloomForCausalLM", 4, 256, hidden_size=512, n_layer=4, n_head=8, **_SMALL_VOCAB
    ),
    "bert": _of("BertConfig", "BertForMaskedLM", 8, 256, **_LAYERS),
    "deberta-v2": _of("DebertaV2Config", "DebertaV2ForMaskedLM", 4, 128, **_MEDIUM, intermediate_size=2048),
    "t5": _of("T5Config", "T5ForConditionalGeneration", 4, 256, num_layers=2, vocab_size=8000),
    "bart": _of(
        "BartConfig",
        "BartForConditionalGeneration",
        4,
        128,
        encoder_layers=2,
        decoder_layers=2,
        d_model=512,
    ),
    "vit": _of("ViTConfig", "ViTForImageClassification", 8, **_LAYERS),
    "swin": _of("SwinConfig", "SwinForImageClassification", 4),
    "resnet-50": _of("ResNetConfig", "ResNetForImageClassification", 4),
    "convnext-t": _of("ConvNextConfig", "ConvNextForImageClassification", 4),
    "whisper-t": _of(
        "WhisperConfig", "WhisperForConditionalGeneration", 1, 128, encoder_layers=2, decoder_layers=2
    ),
    "unet": Subject(build=partial(UNet, 32), samples=8, inputs=_images),
    "lstm": Subject(build=partial(Recurrent, 256, 2000), samples=16, length=64, inputs=_tokens),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Bytes at the peak of a step."""

    estimated: int
    real: int

    @property
    def error(self) -> float:
        return self.estimated / self.real - 1


def traced(name: str, module: nn.Module) -> TracedSource:
    """Return a model as a source."""
    return traced_module(module, ref=name, sample_inputs=SUBJECTS[name].inputs)


def estimated(name: str) -> int:
    """Return the estimate, from a trace of the model."""
    subject = SUBJECTS[name]
    with torch.device("meta"):
        module = subject.build()
    source, length = traced(name, module), subject.length
    stack = load_stack("torch")
    facts = Facts(
        model=source.at(length, Precision.FP32, stack.kernels),
        hardware=load_hardware(_ON),
        workload=Workload(
            global_batch_size=subject.samples,
            sequence_length=length,
            optimizer=Optimizer.ADAMW,
            precision=Precision.FP32,
        ),
        stack=stack,
    )
    plan = Plan(
        mesh=Mesh(),
        micro_batch_size=subject.samples,
        gradient_accumulation_steps=1,
        precision=Precision.FP32,
        backend=Backend.NCCL,
    )
    memory = assess(facts, plan).estimate.memory
    return memory.total - memory.overhead


def real(name: str) -> int:
    """Return the peak of a second step: the first one makes the optimizer's states."""
    torch.manual_seed(0)
    subject = SUBJECTS[name]
    module = subject.build().train()
    optimizer = torch.optim.AdamW(module.parameters(), foreach=True)
    inputs = made(traced(name, module).inputs.make, subject.samples, subject.length)
    _step(module, optimizer, inputs)
    tracker = MemTracker()
    tracker.track_external(module, optimizer, *_tensors(inputs))
    with tracker:
        _step(module, optimizer, inputs)
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def _step(module: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any) -> None:
    logits = read_by_loss(module(**inputs) if isinstance(inputs, Mapping) else module(inputs))
    loss_of(logits, in_fp32=False).backward()
    del logits
    optimizer.step()
    optimizer.zero_grad()


def _tensors(inputs: Any) -> list[torch.Tensor]:
    return list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]


def main() -> None:
    """Print a line for each model, and what the errors come to."""
    names = sys.argv[1:] or list(SUBJECTS)
    print(f"{'model':12} {'estimated MiB':>13} {'real MiB':>9} {'error':>7}")
    errors = []
    for name in names:
        peaks = Peaks(estimated=estimated(name), real=real(name))
        errors.append(abs(peaks.error))
        print(
            f"{name:12} {peaks.estimated / MIB:13.2f} {peaks.real / MIB:9.2f} {peaks.error:+7.1%}",
            flush=True,
        )
    within = sum(error <= 0.02 for error in errors)
    typical, worst = statistics.median(errors), max(errors)
    print(f"median {typical:.1%}, {within} of {len(errors)} within 2 %, worst {worst:.1%}")


if __name__ == "__main__":
    main()
