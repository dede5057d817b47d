"""``parallelize.py`` with divided layers: it reads well, and does what auto_parallelize does."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from drawn import drawn
from emit.divided import both_ways
from runtime.ranks import on_ranks
from torch import nn
from versions import follows_views

from parastrat.emit import EMITTERS, EmitError, Target
from parastrat.emit.division import Division, Place, Reading, Style
from parastrat.emit.python import emit
from parastrat.errors import LaunchError, ModelError, ParastratError
from parastrat.plan import Compile, Mesh, Recompute, Shard
from parastrat.runtime import emission
from parastrat.runtime.emission import proven_division
from parastrat.runtime.tensor_parallel.layout import Group, Inside, Layout, Part, Role
from parastrat.runtime.tensor_parallel.written import NotWrittenError, written
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.hardware import Device

MODELS = Path(__file__).parent / "divided.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"

_LAYER = "model.layers.*"
DIVISION = Division(
    container="model.layers",
    blocks=32,
    places=(
        Place(name="model.embed_tokens", style=Style.EMBEDDING),
        Place(name="model.layers.0", style=Style.FIRST_OF_SHARE),
        Place(
            name=f"{_LAYER}.self_attn",
            style=Style.READER_OF_SHARE,
            reading=Reading(keyword="hidden_states"),
        ),
        *(Place(name=f"{_LAYER}.self_attn.{each}_proj", style=Style.COLUMN) for each in "qkv"),
        Place(name=f"{_LAYER}.self_attn.o_proj", style=Style.ROW_TO_SHARE),
        Place(name=f"{_LAYER}.norm", style=Style.WHOLE_OF_SHARE),
        Place(name="model.norm", style=Style.WHOLE),
        Place(name="lm_head", style=Style.HEAD),
    ),
    tied=(("model.embed_tokens", "lm_head"),),
    model="LlamaForCausalLM of transformers",
)


def test_golden(case_of: Callable[..., Case], golden: Callable[[str, str], None]) -> None:
    case = case_of(mesh=Mesh(dp_shard=4, tp=2), sequence_parallel=True, recompute=Recompute.FULL)
    (file,) = emit(case, DIVISION)
    assert "import parastrat" not in file.text
    golden("fsdp2-tp.parallelize.py.txt", file.text)


@pytest.mark.parametrize(
    "fields",
    [
        {"mesh": Mesh(tp=8), "shard": Shard.NONE, "precision": Precision.BF16_MIXED},
        {"mesh": Mesh(dp_replicate=2, dp_shard=2, tp=2), "recompute": Recompute.SELECTIVE},
        {"mesh": Mesh(dp_replicate=4, tp=2), "shard": Shard.NONE, "recompute": Recompute.ATTENTION},
    ],
)
def test_no_plan_is_too_long_to_read(fields: dict[str, Any], case_of: Callable[..., Case]) -> None:
    (file,) = emit(case_of(**fields), DIVISION)
    lines = [line for line in file.text.splitlines() if line.strip()]
    assert max(map(len, lines)) <= 108
    assert len(lines) <= 120
    compile(file.text, file.path, "exec")


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"compile": Compile.BLOCK}, "compile = block"), ({"precision": Precision.FP16_MIXED}, "fp16-mixed")],
)
def test_what_is_not_tried_is_refused(
    fields: dict[str, Any], message: str, case_of: Callable[..., Case]
) -> None:
    with pytest.raises(EmitError, match=message):
        emit(case_of(mesh=Mesh(dp_shard=4, tp=2), **fields), DIVISION)


def test_a_plan_file_alone_does_not_say_what_is_divided(case_of: Callable[..., Case]) -> None:
    with pytest.raises(EmitError, match="is found by tracing the model") as refused:
        EMITTERS[Target.PYTHON](case_of(mesh=Mesh(dp_shard=4, tp=2)))
    assert "--model path.py:callable" in refused.value.hint


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.gate, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)
        self.dropout = nn.Dropout(dropout)


def model(padding: int | None = None, dropout: float = 0.0) -> nn.Module:
    whole = nn.Module()
    whole.embed = nn.Embedding(4, 8, padding_idx=padding)
    whole.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
    return whole


def group(index: int, *, inside: Inside = Inside.LOCAL, **parts: Part) -> Group:
    named = {f"blocks.{index}.{name}": part for name, part in parts.items()}
    return Group(kind="blocks.*", parts=named, inside=inside)


COLUMN, ROW = Part(role=Role.COLUMN), Part(role=Role.ROW)
EMBEDDING = Group(kind="embed", parts={"embed": Part(role=Role.EMBEDDING)})


@pytest.mark.parametrize(
    ("fields", "groups", "reason"),
    [
        ({}, [group(0, up=COLUMN, down=ROW)], "blocks.1.up is divided in another way"),
        ({}, [group(0, up=COLUMN, gate=COLUMN, down=ROW)], "no module of their own holds"),
        ({}, [group(0, up=Part(role=Role.COLUMN, segments=(8, 8)), down=ROW)], "fused of 2 layers"),
        ({}, [group(0, up=COLUMN, down=Part(role=Role.ROW_OF_WHOLE))], "its share of a whole input"),
        ({}, [group(0, up=COLUMN, down=ROW, inside=Inside.DTENSORS)], "counts whole heads or features"),
        ({"padding": 0}, [EMBEDDING], "has a padding index"),
        ({"dropout": 0.1}, [EMBEDDING], "dropout has to be alike"),
    ],
)
def test_what_torch_does_not_say_is_told(fields: dict[str, Any], groups: list[Group], reason: str) -> None:
    with pytest.raises(NotWrittenError, match=reason):
        written(model(**fields), Layout(groups=tuple(groups)), {})


def test_what_stands_beside_layers_is_told() -> None:
    whole = model()
    whole.scale = nn.Parameter(nn.Linear(1, 1).weight)
    with pytest.raises(NotWrittenError, match="scale stands beside layers"):
        written(whole, Layout(groups=(EMBEDDING,)), {})


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_preset_is_divided_as_transformers_builds_it(
    case_of: Callable[..., Case], cpu_device: Device
) -> None:
    case = case_of(ranks=2, device=cpu_device, mesh=Mesh(tp=2), shard=Shard.NONE)
    division = proven_division("llama-3.2-1b", case)
    assert (division.blocks, division.model) == (16, DIVISION.model)
    (file,) = emit(case, division)
    assert '"model.layers.*.self_attn.q_proj": tp.ColwiseParallel(),' in file.text
    assert "Model: LlamaForCausalLM of transformers, or another" in file.text


def test_a_preset_of_another_form_is_not_built(case_of: Callable[..., Case], cpu_device: Device) -> None:
    with pytest.raises(ModelError, match=r"grok-1 is known by its sizes alone"):
        proven_division("grok-1", case_of(ranks=2, device=cpu_device, mesh=Mesh(tp=2)))


CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "tp": ("llama", {"mesh": Mesh(tp=2), "shard": Shard.NONE}),
    "tp+sp": ("llama", {"mesh": Mesh(tp=2), "shard": Shard.NONE, "sequence_parallel": True}),
    "fsdp2+tp": (
        "decoder",
        {
            "mesh": Mesh(dp_shard=2, tp=2),
            "sequence_parallel": True,
            "precision": Precision.BF16_MIXED,
            "recompute": Recompute.FULL,
        },
    ),
    "ddp+tp": ("decoder", {"mesh": Mesh(dp_replicate=2, tp=2), "shard": Shard.NONE}),
    "mixture": ("mixture", {"mesh": Mesh(tp=2), "shard": Shard.NONE, "sequence_parallel": True}),
    "mixture, whole": ("mixture", {"mesh": Mesh(tp=2), "shard": Shard.NONE}),
    "mixture, fsdp2": ("mixture", {"mesh": Mesh(dp_shard=2, tp=2), "sequence_parallel": True}),
}


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("cell", dict.fromkeys(["mixture", *drawn(list(CELLS), 1)]))
def test_makes_the_collectives_of_auto_parallelize(
    cell: str, case_of: Callable[..., Case], cpu_device: Device
) -> None:
    name, fields = CELLS[cell]
    ranks = fields["mesh"].world_size
    case = case_of(ranks=ranks, device=cpu_device, **{"precision": Precision.FP32, **fields})
    case = replace(case, model=SimpleNamespace(ref=name, divides_sequences=True))  # type: ignore[arg-type]
    division = proven_division(f"{MODELS}:{name}", case)
    (file,) = emit(case, division)
    for emitted, ours in on_ranks(ranks, both_ways, name, file.text, case.plan):
        # gradients of a tensor that several layers read are added up in another order
        assert emitted["losses"] == pytest.approx(ours["losses"], rel=1e-6)
        assert emitted["collectives"] == ours["collectives"]
        assert emitted["collectives"]
        assert emitted["keys"] == ours["keys"]


def threads_of(text: str) -> list[int]:
    """What the groups of an emitted script's mesh have, as one rank sees them."""
    script: dict[str, Any] = {"__name__": "parallelize"}
    exec(text, script)  # noqa: S102  (what is emitted is what is tested)
    groups = script["build_mesh"]().get_all_groups()
    # a rank that ends while the other still connects resets the connection
    torch.distributed.barrier()
    return [group._get_backend(torch.device("cpu")).options._threads for group in groups]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("mesh", "shard", "threads"),
    [(Mesh(dp_shard=2), Shard.PARAMETERS, 1), (Mesh(dp_replicate=2), Shard.NONE, 2)],
    ids=["fsdp2", "ddp"],
)
def test_gloo_gathers_dtensors_by_one_thread(
    mesh: Mesh, shard: Shard, threads: int, case_of: Callable[..., Case], cpu_device: Device
) -> None:
    (file,) = EMITTERS[Target.PYTHON](case_of(ranks=2, device=cpu_device, mesh=mesh, shard=shard))
    assert on_ranks(2, threads_of, file.text) == [[threads]] * 2


@follows_views
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_heads_counted_by_the_code_are_refused(case_of: Callable[..., Case], cpu_device: Device) -> None:
    case = case_of(ranks=2, device=cpu_device, mesh=Mesh(tp=2), shard=Shard.NONE)
    with pytest.raises(EmitError, match="own code counts whole heads or features") as refused:
        proven_division(f"{EXAMPLE}:build", case)
    assert "through auto_parallelize" in refused.value.hint


def test_more_ranks_than_this_host_has_memory_for_are_not_started(
    case_of: Callable[..., Case], cpu_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emission, "read_memory_bytes", lambda _root: 2 * emission.RANK_BYTES - 1)
    case = case_of(ranks=2, device=cpu_device, mesh=Mesh(tp=2), shard=Shard.NONE)
    with pytest.raises(EmitError, match=r"2 tp ranks .* about 1 GiB; this host has 1") as refused:
        proven_division(f"{EXAMPLE}:build", case)
    assert "torchrun or slurm" in refused.value.hint


@pytest.mark.slow
@pytest.mark.skipif(
    "PARASTRAT_TEST_ALL" not in os.environ, reason="the next two tests say it without ranks"
)
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        # what the model's own code raises on the copy is said of the model
        ("Odd", EmitError, "raised ZeroDivisionError: odd"),
        ("Dying", LaunchError, "ended with exit code 7"),
    ],
)
def test_ranks_that_fail_are_not_waited_for(
    name: str, error: type[ParastratError], message: str, case_of: Callable[..., Case], cpu_device: Device
) -> None:
    case = case_of(ranks=2, device=cpu_device, mesh=Mesh(tp=2), shard=Shard.NONE)
    begun = time.monotonic()
    with pytest.raises(error, match=message):
        proven_division(f"{MODELS}:{name}", case)
    assert time.monotonic() - begun < emission.DEADLINE_S / 4


def test_a_rank_says_whatever_was_raised(
    case_of: Callable[..., Case], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def odd(*_arguments: object) -> emission.Answer:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(emission, "_found", odd)
    answers: queue.Queue[emission.Answer] = queue.Queue()
    emission._rank(1, str(tmp_path / "store"), answers, "model", case_of())
    assert "raised ZeroDivisionError: odd" in answers.get_nowait().refused[0]


def test_a_rank_that_ended_without_a_word_is_told() -> None:
    ranks = [SimpleNamespace(exitcode=None), SimpleNamespace(exitcode=-9)]
    begun = time.monotonic()
    answer = emission._first_answer(queue.Queue(), ranks)  # type: ignore[arg-type]
    assert "ended with exit code -9" in answer.refused[0]
    assert time.monotonic() - begun < 10
