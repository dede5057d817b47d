"""Train a small Llama of Hugging Face, or the GPT of ``train_gpt.py``, under any plan: TP, PP, 3D.

    parastrat estimate examples/train_parallel.py:llama --on cpu --ranks-per-node 8 \
        --pp 2 --dp-shard 2 --tp 2 --strategy fsdp2+tp+pp \
        --seq-len 128 --global-batch 32 --micro-batch 4 -o plan.toml
    parastrat run plan.toml examples/train_parallel.py --model llama --steps 20

A pipeline has to know where a step begins and ends, so the loop calls ``forward_backward``; it is the same
for every plan.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from train_gpt import VOCABULARY, Windows, build, standard_library

import parastrat


def gpt() -> nn.Module:
    """Return a plain module: 1.2 million parameters, the head tied to the embedding."""
    return build()


def llama() -> nn.Module:
    """Return a Llama of six layers with grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - the GPT needs none

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def sample_inputs(micro_batch_size: int, sequence_length: int | None) -> torch.Tensor:
    """Return tokens as both models take them."""
    return torch.zeros(micro_batch_size, sequence_length or 128, dtype=torch.int64)


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt": gpt, "llama": llama}


def loss_of(output: Any, targets: torch.Tensor) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small language model under any plan.")
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--checkpoint", help="folder to save to at the end")
    args = parser.parse_args()
    torch.manual_seed(0)
    train_text, test_text = standard_library()
    windows, held_out = Windows(train_text, args.seq_len), Windows(test_text, args.seq_len)
    order = torch.Generator().manual_seed(0)

    model = parastrat.auto_parallelize(
        MODELS[args.model],
        sample_inputs=sample_inputs(2, args.seq_len),
        loss_fn=loss_of,
        allow_pipeline=True,
    )
    loader = parastrat.shard_dataloader(
        DataLoader(windows, batch_size=32, shuffle=True, generator=order, drop_last=True)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), fused=True)
    first = not dist.is_initialized() or dist.get_rank() == 0
    for step, (inputs, targets) in zip(range(1, args.steps + 1), loader, strict=False):
        loss = parastrat.forward_backward(model, inputs, targets)
        norm = parastrat.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if first and (step % 5 == 0 or step in (1, args.steps)):
            print(f"step {step} loss {loss:.4f} gradient norm {norm:.2f}", flush=True)

    chosen = [held_out[index * len(held_out) // 64] for index in range(64)]
    tested = parastrat.evaluate(model, DataLoader(chosen, batch_size=8), loss_of)
    if args.checkpoint:
        parastrat.save_checkpoint(model, optimizer, args.checkpoint)
    if first:
        print(f"held-out files: loss {tested:.4f} ({tested / math.log(2):.2f} bits a byte)")


if __name__ == "__main__":
    main()
