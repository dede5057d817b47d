"""Run by torchrun: wrap a small GPT, train two steps, write down every collective and the result.

``collectives.py plain|parastrat FOLDER``: FOLDER holds parallelize.py and plan.toml; the answers go there.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from runtime.uncompared import uncompared
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WIDTH, VOCAB, LENGTH = 32, 64, 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(mixed.transpose(1, 2).flatten(2))


class Gpt(nn.Module):
    def __init__(self, *, changing_buffers: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(()), persistent=changing_buffers)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Recorder(TorchDispatchMode):
    """Notes each collective with the bytes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            sizes = [leaf.nbytes for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            self.seen.append((func.name(), sum(sizes)))
        return func(*args, **(kwargs or {}))


def wrapped(how: str, folder: Path, model: nn.Module) -> nn.Module:
    if how == "parastrat":
        from parastrat import auto_parallelize
        from parastrat.parse import read_plan

        # ranks are compared after their first steps, which emitted code leaves out
        with uncompared():
            return auto_parallelize(model, plan=read_plan(folder / "plan.toml").plan)
    spec = importlib.util.spec_from_file_location("parallelize", folder / "parallelize.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.parallelize(model, module.build_mesh())


def main(how: str, folder: Path) -> None:
    import os

    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(rank)  # ranks draw different weights; rank 0's must win
    planned = tomllib.loads((folder / "plan.toml").read_text())["model"]
    plain = Gpt(changing_buffers=planned.get("changing_buffers", True))
    recorder = Recorder()
    with recorder:
        model = wrapped(how, folder, plain)
        wrapping = list(recorder.seen)
        recorder.seen.clear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(2):
            tokens = torch.randint(
                VOCAB, (2, LENGTH + 1), generator=torch.Generator().manual_seed(10 * step + rank)
            )
            logits = model(tokens[:, :-1])
            loss = cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    answer = {
        "wrapping": wrapping,
        "steps": recorder.seen,
        "losses": losses,
        "keys": [key.removeprefix("module.") for key in model.state_dict()],
        "initialized": dist.is_initialized(),
    }
    (folder / f"{how}{rank}.json").write_text(json.dumps(answer))
    del model, optimizer
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
