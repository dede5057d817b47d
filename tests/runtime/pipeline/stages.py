"""What the ranks of the pipeline's tests do; one start of the processes runs many cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from drawn import drawn
from runtime.cells import added_up, labelled
from runtime.models import Gpt, plan, token_loss, tokens
from runtime.training import FEW, GLOBAL_BATCH, MODELS, image_batch, labelled_batch, part
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.utils.data import DataLoader

import parastrat
from parastrat.errors import ParastratError
from parastrat.plan import PipelineSchedule

SEVERAL = (
    PipelineSchedule.INTERLEAVED,
    PipelineSchedule.LOOPED_BFS,
    PipelineSchedule.INTERLEAVED_ZERO_BUBBLE,
    PipelineSchedule.ZBV,
    PipelineSchedule.DUAL_PIPE_V,
)
#: models under schedules of two stages a rank; benchmarks/parity.py has all schedules
SEVERAL_CELLS = [
    *(("gpt", schedule) for schedule in drawn(SEVERAL, 2)),
    *(("llama", schedule) for schedule in drawn([PipelineSchedule.INTERLEAVED, PipelineSchedule.ZBV], 1)),
]
DATA = {"ddp": {"dp_replicate": 2}, "fsdp2": {"dp_shard": 2}}
#: a model and schedule over stages of two ranks, and what the ranks of a stage do
DATA_CELLS = [
    (model, schedule, data)
    for model, schedule in (
        ("gpt", PipelineSchedule.ONE_F_ONE_B),
        *drawn(
            [
                ("gpt", PipelineSchedule.INTERLEAVED),
                ("gpt", PipelineSchedule.INTERLEAVED_ZERO_BUBBLE),
                ("vit", PipelineSchedule.ZBV),
            ],
            1,
        ),
    )
    for data in DATA
]
GPIPE = {"pp": 2, "pp_schedule": PipelineSchedule.GPIPE}
ONE_F_ONE_B = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}


class Convolution(nn.Module):
    """Writes to what it is given, as residual blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(functional.relu(self.norm(self.first(x)), inplace=True))
        y += x
        return y.relu_()


class Skips(nn.Module):
    """Outputs of the first half come back in the second, past the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.down, self.up = (nn.ModuleList(Convolution() for _ in range(3)) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        kept = [x := block(x) for block in self.down]
        for index, block in enumerate(self.up):
            x = block(x + self.scale[index] * kept.pop())
        return self.head(x.mean((2, 3)))


def skip_batch(step: int) -> Any:
    batch, labels = image_batch(step)
    return batch["pixel_values"], labels


def encoder_decoder() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4}
    tokens = {"decoder_start_token_id": 0, "pad_token_id": 0}
    return T5ForConditionalGeneration(T5Config(dropout_rate=0.0, **shape, **tokens))


#: models beside those of the parity of other strategies
OWN = {
    "skips": (Skips, skip_batch, functional.cross_entropy),
    "t5": (encoder_decoder, labelled_batch, None),
}

Weights = dict[str, torch.Tensor]


def share_of(batch: Any, fields: dict[str, Any]) -> Any:
    """This rank's samples; all ranks of a pipeline have the same."""
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    share = GLOBAL_BATCH // ranks
    start = share * (dist.get_rank() % ranks) if dist.is_initialized() else 0
    return tuple(part(side, start, start + share) for side in batch)


def wrapped(fields: dict[str, Any], model: Any, **keywords: Any) -> nn.Module:
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    chosen = plan(**{"gradient_accumulation_steps": GLOBAL_BATCH // 2 // ranks, **fields})
    return parastrat.auto_parallelize(model, plan=chosen, **keywords)


def trained(name: str, fields: dict[str, Any], *, meta: bool = False) -> list[float]:
    """Train one of the parity's models; return the losses of all steps."""
    build, batch_of, loss_fn = (MODELS | OWN)[name]
    torch.manual_seed(0)
    example = part(batch_of(0)[0], 0, 2)
    model = wrapped(fields, build if meta else build(), sample_inputs=example)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(FEW):
        inputs, targets = share_of(batch_of(step), fields)
        losses.append(parastrat.forward_backward(model, inputs, targets, loss_fn=loss_fn).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def uneven_batch(step: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first two samples have no targets, the third a few."""
    x, y = tokens(step, samples)
    y[:2] = -100
    y[2, 3:] = -100
    return x, y


def uneven(fields: dict[str, Any], samples: int) -> list[tuple[float, float]]:
    """Losses and norms where micro-batches hold different numbers of targets, even none, and of samples."""
    torch.manual_seed(dist.get_rank())  # the stages begin with different weights, and rank 0's count
    model = wrapped(fields, Gpt() if dist.get_rank() else seeded())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(3):
        x, y = uneven_batch(step, samples)
        loss = parastrat.forward_backward(model, x, y, loss_fn=token_loss)
        found.append((loss.item(), parastrat.clip_grad_norm_(model, 1e-2).item()))
        optimizer.step()
        optimizer.zero_grad()
    return found


def seeded() -> Gpt:
    torch.manual_seed(0)
    return Gpt()


def gradients(fields: dict[str, Any]) -> Weights:
    """All gradients of one step, by the names of the whole model."""
    model = wrapped(fields, seeded())
    parastrat.forward_backward(model, *share_of(tokens(0, GLOBAL_BATCH), fields), loss_fn=token_loss)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def on_two() -> dict[str, Any]:
    """Every cell for two ranks."""
    found: dict[str, Any] = {
        f"{name}-{schedule['pp_schedule']}": trained(name, schedule)
        for name in ("gpt", "llama")
        for schedule in (GPIPE, ONE_F_ONE_B)
    }
    found |= {f"{name}-1F1B": trained(name, ONE_F_ONE_B) for name in ("example", "gpt2", "bert", "vit")}
    found["meta"] = trained("gpt", ONE_F_ONE_B, meta=True)
    for samples in (8, 5):
        found[f"uneven-{samples}"] = uneven(ONE_F_ONE_B, samples)
    found["gradients"] = gradients(ONE_F_ONE_B)
    found["added up"] = added_up(ONE_F_ONE_B | {"gradient_accumulation_steps": 4})
    return found


def several(schedule: PipelineSchedule) -> dict[str, Any]:
    return {"pp": 2, "virtual_stages": 2, "pp_schedule": schedule}


def refused(action: Callable[[], Any]) -> tuple[str, str, str]:
    try:
        action()
    except ParastratError as error:
        return type(error).__name__, error.message, error.hint
    return "", "", ""


def on_two_virtual() -> dict[str, Any]:
    """Schedules of two stages a rank."""
    found: dict[str, Any] = {
        f"{name}-{schedule.value}": trained(name, several(schedule), meta=name == "llama")
        for name, schedule in SEVERAL_CELLS
    }
    for name in OWN:
        found[f"{name}-1F1B"] = trained(name, ONE_F_ONE_B)
        found[f"{name}-refused"] = refused(lambda name=name: trained(name, several(PipelineSchedule.ZBV)))
    found["uneven"] = uneven(several(PipelineSchedule.ZBV), 5)
    return found


def on_four() -> dict[str, Any]:
    """Stages of two ranks each."""
    found: dict[str, Any] = {}
    for model, schedule, data in DATA_CELLS:
        stages = ONE_F_ONE_B if schedule is PipelineSchedule.ONE_F_ONE_B else several(schedule)
        found[f"{model}-{schedule}-{data}"] = trained(model, stages | DATA[data])
    tied_twice = several(PipelineSchedule.ZBV) | DATA["fsdp2"]
    found["tied twice"] = refused(lambda: trained("gpt", tied_twice))
    return found


def resumed(fields: dict[str, Any], folder: Path, *, load: str = "", save: str) -> list[float]:
    """Load what another plan saved, take two steps, save."""
    torch.manual_seed(7)
    model = wrapped(fields, Gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = parastrat.load_checkpoint(model, optimizer, folder / load)["step"] if load else 0
    losses = []
    for step in range(start, start + 2):
        inputs, targets = share_of(tokens(step, GLOBAL_BATCH), fields)
        losses.append(parastrat.forward_backward(model, inputs, targets, loss_fn=token_loss).item())
        parastrat.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    parastrat.save_checkpoint(model, optimizer, folder / save, extra={"step": start + 2})
    return losses


def from_file(fields: dict[str, Any], path: Path) -> float:
    """The first loss with weights of a file of ``torch.save``."""
    torch.manual_seed(9)
    model = wrapped(fields, Gpt, checkpoint=path)
    inputs, targets = share_of(tokens(0, GLOBAL_BATCH), fields)
    return parastrat.forward_backward(model, inputs, targets, loss_fn=token_loss).item()


def mixed_layers() -> nn.Module:
    """Layers with and without parameters, and running statistics."""
    first = (nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True))
    return nn.Sequential(
        *first, nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
    )


def evaluated(fields: dict[str, Any]) -> float:
    torch.manual_seed(0)
    model = wrapped(fields, mixed_layers, sample_inputs=torch.zeros(2, 3))
    return parastrat.evaluate(model, DataLoader(labelled(), batch_size=3), functional.cross_entropy)


def called_alone(fields: dict[str, Any]) -> tuple[str, str, str]:
    model = wrapped(fields, seeded())
    return refused(lambda: model(torch.zeros(2, 16, dtype=torch.long)))


def different_batches() -> tuple[str, str, str]:
    model = wrapped(ONE_F_ONE_B, seeded())
    x, y = tokens(dist.get_rank(), GLOBAL_BATCH)
    return refused(lambda: parastrat.forward_backward(model, x, y, loss_fn=token_loss))


def dropped() -> tuple[list[float], list[float]]:
    """Elements that two stages drop, and what the caller draws next."""

    def ones() -> nn.Module:
        return nn.Sequential(*(Dropping() for _ in range(2)))

    torch.manual_seed(0)
    model = wrapped(ONE_F_ONE_B, ones(), sample_inputs=torch.ones(2, 64))
    parastrat.forward_backward(model, torch.ones(8, 64), torch.ones(8), loss_fn=lambda out, _: out.mean())
    seen = next(part.seen for part in model.modules() if isinstance(part, Dropping) and part.seen)
    return seen, torch.rand(3).tolist()


class Dropping(nn.Module):
    """Remembers what it dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = functional.dropout(torch.ones(64), 0.5)
        if not isinstance(mask, FakeTensor):
            self.seen = mask.tolist()
        return x * self.weight * mask


def on_two_states(folder: Path) -> dict[str, Any]:
    """Checkpoints, evaluation and what is refused, on two ranks."""
    v_shaped = several(PipelineSchedule.ZBV)
    return {
        "resumed-1F1B": resumed(ONE_F_ONE_B, folder, load="single", save="1F1B"),
        "resumed-ZBV": resumed(v_shaped, folder, load="single", save="ZBV"),
        "file-1F1B": from_file(ONE_F_ONE_B, folder / "plain.pt"),
        "file-ZBV": from_file(v_shaped, folder / "plain.pt"),
        "evaluated-1F1B": evaluated(ONE_F_ONE_B),
        "evaluated-ZBV": evaluated(v_shaped),
        "called-1F1B": called_alone(ONE_F_ONE_B),
        "called-ZBV": called_alone(v_shaped),
        "different batches": different_batches(),
        "dropped": dropped(),
    }
