"""How long a tensor-parallel layout takes to plan and prove: Llama 3.1 8B and 70B of transformers, on meta.

    python benchmarks/layout_start_up.py [--tp N]

N processes choose the layout, as ``auto_parallelize`` does before any weight is allocated: from the
model's own plan, and derived from its data flow alone. The time begins with building the model on meta
and ends with its layers divided; imports are not in it.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from parastrat.plan import Backend, Mesh, Plan
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.communication.mesh import rank_mesh
from parastrat.runtime.first_values.on_meta import build_on_meta
from parastrat.runtime.tensor_parallel.apply import choose_layout, tensor_parallel
from parastrat.runtime.wrapping import Wrapping
from parastrat.workload import Precision

#: fields of the released config.json: https://huggingface.co/meta-llama/Llama-3.1-8B and Llama-3.1-70B
COMMON = {"vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 131072}
MODELS = {
    "llama-3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama-3.1-70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}


def main() -> None:
    """Print a line for each model and source of its layout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tp", type=int, default=2)
    degree = parser.parse_args().tp
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_rank, args=(degree, port), nprocs=degree)


def _rank(rank: int, degree: int, port: int) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(degree)
    )
    torch.set_num_threads(1)
    from transformers.models.llama import modeling_llama  # noqa: F401, PLC0415 - imports are not timed

    dist.init_process_group("gloo")
    for name, fields in MODELS.items():
        for source in ("own plan", "derived"):
            dist.barrier()
            begun = time.monotonic()
            divided, whole = _divided(fields, degree, derived=source == "derived")
            seconds = time.monotonic() - begun
            if rank == 0:
                print(
                    f"{name:<14} {source:<9} tp {degree}: {seconds:5.1f} s, "
                    f"{divided} of {whole} layers divided"
                )
    dist.destroy_process_group()


def _divided(fields: dict[str, int], degree: int, *, derived: bool) -> tuple[int, int]:
    """Return how many linear and embedding layers are divided, of how many."""
    plan = Plan(
        mesh=Mesh(tp=degree),
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        precision=Precision.BF16,
        backend=Backend.GLOO,
        sequence_parallel=True,
    )
    module, record = build_on_meta(lambda: _llama(fields))
    device = torch.device("cpu")
    mesh = rank_mesh(plan, device, [])
    wrapping = Wrapping(plan=plan, device=device, mesh=mesh, blocks=repeated_blocks(module), calls=[])
    if derived:
        _forget_own_plan(module)
    choose_layout(module, wrapping, record=record)
    tensor_parallel(module, wrapping)
    assert wrapping.layout is not None
    layers = {name for name, part in module.named_modules() if isinstance(part, nn.Linear | nn.Embedding)}
    return len(layers & set(wrapping.layout.parts)), len(layers)


def _forget_own_plan(module: nn.Module) -> None:
    config: Any = module.config
    config.base_model_tp_plan = None
    for part in module.modules():
        if hasattr(part, "_tp_plan"):
            part._tp_plan = {}  # noqa: SLF001 - where transformers keeps it


def _llama(fields: dict[str, int]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - loaded before the time begins

    return LlamaForCausalLM(LlamaConfig(**COMMON, **fields))


if __name__ == "__main__":
    main()
