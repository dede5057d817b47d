"""Small models trained alone in plain torch and together under parastrat's plans."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from runtime.models import Gpt, plan, token_loss, tokens
from runtime.uncompared import uncompared
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import Recompute
from parastrat.workload import Precision

#: of some runs, drawn anew for each commit
STEPS = 20
#: of all others; benchmarks/parity.py makes them at full length
FEW = 6
#: samples of one step; every rank takes its share in micro-batches of two
GLOBAL_BATCH = 8
TOLERANCE = 1e-5

Batch = tuple[Any, Any]


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=61,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=16, **off))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    shape = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 16}
    return BertForMaskedLM(BertConfig(num_hidden_layers=2, num_attention_heads=4, **shape, **off))


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    shape = {"hidden_size": 32, "intermediate_size": 48, "image_size": 8, "patch_size": 4, "num_labels": 10}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ViTForImageClassification(ViTConfig(num_hidden_layers=2, num_attention_heads=4, **shape, **off))


def example() -> nn.Module:
    """The GPT that the example trains."""
    path = Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
    spec = importlib.util.spec_from_file_location("train_gpt", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.build()
    return model


def text_batch(step: int) -> Batch:
    return tokens(step, GLOBAL_BATCH)


def labelled_batch(step: int) -> Batch:
    inputs, _ = tokens(step, GLOBAL_BATCH)
    return {"input_ids": inputs, "labels": inputs}, None


def image_batch(step: int) -> Batch:
    draw = torch.Generator().manual_seed(step)
    images = torch.randn(GLOBAL_BATCH, 3, 8, 8, generator=draw)
    return {"pixel_values": images}, torch.randint(10, (GLOBAL_BATCH,), generator=draw)


def logits_loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.logits.float(), targets)


#: builder, batches, and the loss (None: the model's own)
Models = dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch], Any]]
MODELS: Models = {
    "gpt": (Gpt, text_batch, token_loss),
    "example": (example, text_batch, token_loss),
    "llama": (llama, labelled_batch, None),
    "gpt2": (gpt2, labelled_batch, None),
    "bert": (bert, labelled_batch, None),
    "vit": (vit, image_batch, logits_loss),
}

#: number of ranks -> strategies
STRATEGIES: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "ddp": {"dp_replicate": 2},
        "fsdp2": {"dp_shard": 2},
        "fsdp2-kept": {"dp_shard": 2, "reshard_after_forward": False},
    },
    4: {
        "ddp": {"dp_replicate": 4},
        "fsdp2": {"dp_shard": 4},
        "hsdp": {"dp_replicate": 2, "dp_shard": 2},
    },
}
#: further runs of the GPT
VARIANTS: dict[str, dict[str, Any]] = {
    **{p.value: {"precision": p} for p in (Precision.BF16_MIXED, Precision.FP16_MIXED)},
    **{r.value: {"recompute": r} for r in (Recompute.FULL, Recompute.SELECTIVE, Recompute.ATTENTION)},
}
#: losses of 20 steps: (strategy, model, variant) -> losses
Losses = dict[tuple[str, str, str], list[float]]


def part(batch: Any, start: int, end: int) -> Any:
    if isinstance(batch, dict):
        return {name: value[start:end] for name, value in batch.items()}
    return None if batch is None else batch[start:end]


def alone(
    name: str, precision: Precision = Precision.FP32, *, models: Models = MODELS, steps: int = STEPS
) -> list[float]:
    """Train in one process with plain torch, over the same micro-batches of two."""
    build, batch_of, loss_fn = models[name]
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dtype = {Precision.BF16_MIXED: torch.bfloat16, Precision.FP16_MIXED: torch.float16}.get(precision)
    losses = []
    for step in range(steps):
        inputs, targets = batch_of(step)
        mean = 0.0
        for start in range(0, GLOBAL_BATCH, 2):
            x, y = part(inputs, start, start + 2), part(targets, start, start + 2)
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                output = model(**x) if isinstance(x, dict) else model(x)
                loss = output.loss if loss_fn is None else loss_fn(output, y)
            scale = 2.0**10 if dtype is torch.float16 else 1.0
            (loss * scale / (GLOBAL_BATCH // 2)).backward()
            mean += loss.item() / (GLOBAL_BATCH // 2)
            if scale != 1.0 and start == GLOBAL_BATCH - 2:
                for parameter in model.parameters():
                    parameter.grad /= scale
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean)
    return losses


def together(name: str, fields: dict[str, Any], *, broken: bool = False, steps: int = STEPS) -> list[float]:
    """Train on the ranks at hand; broken: without reducing gradients."""
    build, batch_of, loss_fn = MODELS[name]
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    torch.manual_seed(0)
    chosen = plan(gradient_accumulation_steps=GLOBAL_BATCH // 2 // ranks, **fields)
    # ranks that are compared would refuse it
    with uncompared() if broken else nullcontext():
        model = parastrat.auto_parallelize(build(), plan=chosen)
    if broken and isinstance(model, nn.parallel.DistributedDataParallel):
        model.register_comm_hook(None, own_bucket)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    share = GLOBAL_BATCH // ranks
    start = share * dist.get_rank()
    losses = []
    with unreduced() if broken else nullcontext():
        for step in range(steps):
            x, y = (part(side, start, start + share) for side in batch_of(step))
            losses.append(parastrat.forward_backward(model, x, y, loss_fn=loss_fn).item())
            optimizer.step()
            optimizer.zero_grad()
    return losses


def own_bucket(_state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  (torch would compare the strings)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@contextmanager
def unreduced() -> Iterator[None]:
    """Let FSDP2's reductions give back this rank's own part."""

    def own_part(**given: Any) -> None:
        output = given.get("output_tensor", given.get("output"))
        whole = given.get("input_tensor", given.get("input"))
        output.copy_(whole.chunk(given["group"].size())[given["group"].rank()])

    with pytest.MonkeyPatch.context() as patch:
        for name in ("reduce_scatter_single", "reduce_scatter_tensor"):  # torch 2.13 renamed it
            if hasattr(dist, name):
                patch.setattr(dist, name, own_part)
        yield


#: world, strategy and model of the runs in fp32; those of full length
IN_FP32 = drawn(
    [
        (world, strategy, model)
        for world, strategies in STRATEGIES.items()
        for strategy in strategies
        for model in (["gpt", "llama"] if strategy == "fsdp2-kept" else MODELS)
    ],
    16,
)
FULL_LENGTH = drawn(IN_FP32, 2)


def models_of(world: int, strategy: str) -> list[str]:
    return [model for *cell, model in IN_FP32 if cell == [world, strategy]]


def steps_of(world: int, strategy: str, model: str) -> int:
    return STEPS if (world, strategy, model) in FULL_LENGTH else FEW


def has_variants(world: int, strategy: str) -> bool:
    return (world, strategy) in {(2, "ddp"), (2, "fsdp2"), (4, "hsdp")}


def every_cell(world: int) -> Losses:
    """Train every model under every strategy for this many ranks."""
    losses: Losses = {}
    for strategy, fields in STRATEGIES[world].items():
        for model in models_of(world, strategy):
            losses[strategy, model, "fp32"] = together(
                model, fields, steps=steps_of(world, strategy, model)
            )
        losses[strategy, "gpt", "broken"] = together("gpt", fields, broken=True, steps=FEW)
        for variant, changed in VARIANTS.items():
            if has_variants(world, strategy):
                losses[strategy, "gpt", variant] = together("gpt", fields | changed, steps=FEW)
    return losses
