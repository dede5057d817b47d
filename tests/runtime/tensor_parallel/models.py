"""Small models whose sizes divide by two, and how the ranks train them."""

from __future__ import annotations

from typing import Any

import torch
from runtime.models import Gpt, plan
from runtime.training import FEW, GLOBAL_BATCH, MODELS, Batch, Models, part, tokens
from torch import nn

import parastrat
from parastrat.runtime.wrapping import wrapping_of

SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}


def llama(**fields: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**{**SHAPE, **GROUPED, **fields}))


def tied_llama() -> nn.Module:
    return llama(tie_word_embeddings=True)


def qwen3() -> nn.Module:
    """Norms of each head, inside the region that is divided."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, **GROUPED))


def phi3() -> nn.Module:
    """Fused projections, which its own plan gathers."""
    from transformers import Phi3Config, Phi3ForCausalLM

    return Phi3ForCausalLM(
        Phi3Config(**SHAPE, num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    )


def opt() -> nn.Module:
    """Names its number of heads in a view: local tensors alone would be silently wrong."""
    from transformers import OPTConfig, OPTForCausalLM

    shape = {"vocab_size": 64, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "dropout": 0.0}
    return OPTForCausalLM(
        OPTConfig(num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32, **shape)
    )


class Perceptron(nn.Module):
    """No attention and no repeated block; one pair and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(8, 12), nn.Linear(8, 12)
        self.second, self.last = nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + self.second(torch.sigmoid(self.gate(x)) * torch.relu(self.first(x))))


def Tiny() -> nn.Module:  # noqa: N802  (a model)
    """The hand-written GPT with sizes that divide, and tied weights."""
    return Gpt(vocab=64)


def labelled(step: int) -> Batch:
    ids, _ = tokens(step, GLOBAL_BATCH, vocab=64)
    return {"input_ids": ids, "labels": ids}, None


def uneven(step: int) -> Batch:
    """Labels of which each sample has another number."""
    ids, _ = tokens(step, GLOBAL_BATCH, vocab=64)
    labels = ids.clone()
    for sample in range(GLOBAL_BATCH):
        labels[sample, : 2 * sample] = -100
    return {"input_ids": ids, "labels": labels}, None


OWN: Models = {
    "llama": (llama, labelled, None),
    "tied_llama": (tied_llama, labelled, None),
    "qwen3": (qwen3, labelled, None),
    "phi3": (phi3, labelled, None),
    "opt": (opt, labelled, None),
}
ALL: Models = MODELS | {f"tp:{name}": entry for name, entry in OWN.items()}
ALL["tp:uneven"] = (llama, uneven, None)


def at_once(name: str) -> list[float]:
    """Train in one process with the mean over all targets of each batch."""
    build, batch_of, _ = ALL[name]
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(FEW):
        loss = model(**batch_of(step)[0]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained(name: str, fields: dict[str, Any]) -> tuple[list[float], float]:
    """Train on the ranks at hand; return the losses and the gradient norm of the last step."""
    build, batch_of, loss_fn = ALL[name]
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    torch.manual_seed(0)
    chosen = plan(gradient_accumulation_steps=GLOBAL_BATCH // 2 // ranks, **fields)
    model = parastrat.auto_parallelize(build(), plan=chosen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    share = GLOBAL_BATCH // ranks
    start = share * wrapping_of(model).mesh.dp_rank
    losses, norm = [], torch.zeros(())
    for step in range(FEW):
        x, y = (part(side, start, start + share) for side in batch_of(step))
        losses.append(parastrat.forward_backward(model, x, y, loss_fn=loss_fn).item())
        norm = parastrat.clip_grad_norm_(model, 1e9)
        optimizer.step()
        optimizer.zero_grad()
    return losses, float(norm)
