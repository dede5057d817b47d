"""Models whose layers are divided, and how the ranks train them under emitted code and auto_parallelize."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from emit.messages import Messages
from runtime.uncompared import uncompared
from torch import nn
from torch.nn.functional import cross_entropy

import parastrat
from parastrat.plan import Plan

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from handwritten.decoder import Decoder

VOCABULARY, STEPS = 64, 2


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, tie_word_embeddings=True, **shape)
    )


def mixture() -> nn.Module:
    """A router that returns several tensors, and all experts' weights in one."""
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=VOCABULARY, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, **shape
        )
    )


def decoder() -> nn.Module:
    """The plain one that benchmarks divide by hand."""
    return Decoder()


class Odd(Decoder):
    """Its own code fails as no error of parastrat does, or ends the process."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized():
            self.fail()
        return super().forward(tokens)

    def fail(self) -> None:
        raise ZeroDivisionError("odd")


class Dying(Odd):
    def fail(self) -> None:
        os._exit(7)


def trained(model: nn.Module, place: int) -> dict[str, Any]:
    """Two steps on the samples of one place among the data ranks."""
    losses = []
    with Messages() as messages:
        # all weights at once: a mixture of plain tensors and DTensors would raise
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
        for step in range(STEPS):
            drawn = torch.Generator().manual_seed(10 * step + place)
            ids = torch.randint(VOCABULARY, (2, 17), generator=drawn)
            output = model(ids[:, :-1])
            logits = output if isinstance(output, torch.Tensor) else output.logits
            loss = cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return {"losses": losses, "collectives": sorted(messages.seen), "keys": list(model.state_dict())}


def both_ways(name: str, text: str, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """Emitted code, then auto_parallelize. Ranks draw other weights; rank 0's must win."""
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    names: dict[str, Any] = {}
    exec(compile(text, "parallelize.py", "exec"), names)  # noqa: S102 - the emitted code is what is tested
    found = []
    for wrap in (
        lambda model: names["parallelize"](model, names["build_mesh"]()),
        lambda model: parastrat.auto_parallelize(model, plan=plan),
    ):
        torch.manual_seed(rank)
        built = {"llama": llama, "decoder": decoder, "mixture": mixture}[name]()
        # ranks are compared after their first steps, which emitted code leaves out
        with uncompared():
            wrapped = wrap(built)
        found.append(trained(wrapped, rank // plan.mesh.tp))
    return found[0], found[1]
