"""Train the chain of ``models.py``, wrapped as the first argument says: what users' scripts look like."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from runtime.dry_run.models import WORDS, Chain, Wide
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def ddp(device: torch.device) -> nn.Module:
    model = Wide().to(device)
    return DistributedDataParallel(model, device_ids=[device.index], gradient_as_bucket_view=True)


def fsdp2(device: torch.device) -> nn.Module:
    model = Chain().to(device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


def meta(device: torch.device) -> nn.Module:
    with torch.device("meta"):
        model = Chain()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model, reshard_after_forward=False)
    return model.to_empty(device=device)


def compiled(device: torch.device) -> nn.Module:
    return torch.compile(Chain().to(device.index))


def planned(_device: torch.device) -> nn.Module:
    import parastrat

    return parastrat.auto_parallelize(Chain)


def built(_device: torch.device) -> nn.Module:
    import parastrat

    return parastrat.auto_parallelize(Chain())


def main() -> None:
    kind = sys.argv[1]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    if kind not in ("planned", "built"):
        dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = globals()[kind](device)
    optimizer = torch.optim.AdamW(model.parameters())
    data = DataLoader(
        TensorDataset(torch.randint(WORDS, (64, 9))),
        batch_size=2,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
    )
    for (batch,) in data:
        tokens = batch.cuda(non_blocking=True)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        if "--read" in sys.argv and not loss.item() > 0:
            raise SystemExit("the loss is not above zero")
        if "--where" in sys.argv:
            loss += logits[logits > 0].sum()
        loss.backward()
        del logits
        optimizer.step()
        optimizer.zero_grad()
        if "--once" in sys.argv:
            break
    if "--once" not in sys.argv:
        raise SystemExit("all data was read")


if __name__ == "__main__":
    if "--nothing" not in sys.argv:
        main()
