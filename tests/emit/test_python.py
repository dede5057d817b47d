"""``parallelize.py``: reads well, never imports parastrat, and does what auto_parallelize does."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from emit.collectives import LENGTH, WIDTH, Layer
from runtime.ranks import script_on_ranks
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from parastrat.case import Unknown
from parastrat.emit import EMITTERS, EmitError, Target, emitted, plan_toml
from parastrat.errors import UnknownFactError
from parastrat.plan import Compile, Mesh, Offload, Recompute, Shard
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.recompute import recomputing, replace_module
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case
    from parastrat.hardware import Device

DDP = {"mesh": Mesh(dp_replicate=2), "shard": Shard.NONE}
FSDP = {"mesh": Mesh(dp_shard=2)}
HSDP = {"mesh": Mesh(dp_replicate=2, dp_shard=2)}
COLLECTIVES = Path(__file__).parent / "collectives.py"


def text_of(case: Case) -> str:
    (file,) = EMITTERS[Target.PYTHON](case)
    assert file.path == "parallelize.py"
    return file.text


def names_in(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "parallelize.py", "exec"), names)  # noqa: S102 - the emitted code is what is tested
    return names


def test_a_loss_in_chunks_is_asked_of_the_forward(case_of: Callable[..., Case]) -> None:
    case = case_of(ranks=8, mesh=Mesh(dp_shard=8))
    chunked = replace(case, workload=replace(case.workload, loss_chunks=8))
    assert "logits of its loss in 8 chunks" in text_of(chunked)
    assert "chunks" not in text_of(case)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fsdp2", {"recompute": Recompute.FULL, "compile": Compile.BLOCK}),
        (
            "hsdp",
            {
                "mesh": Mesh(dp_replicate=2, dp_shard=4),
                "precision": Precision.BF16,
                "recompute": Recompute.SELECTIVE,
                "reshard_after_forward": False,
                "gradient_accumulation_steps": 4,
            },
        ),
        (
            "ddp",
            {
                "mesh": Mesh(dp_replicate=8),
                "shard": Shard.NONE,
                "gradient_accumulation_steps": 4,
                "precision": Precision.FP16_MIXED,
            },
        ),
        (
            "single",
            {
                "mesh": Mesh(),
                "shard": Shard.NONE,
                "precision": Precision.FP32,
                "recompute": Recompute.ATTENTION,
            },
        ),
    ],
)
def test_goldens(
    name: str,
    fields: dict[str, Any],
    case_of: Callable[..., Case],
    golden: Callable[[str, str], None],
) -> None:
    text = text_of(case_of(ranks=1 if name == "single" else 8, **fields))
    assert "parastrat" not in text
    assert "torch.torch" not in text
    lines = [line for line in text.splitlines() if line.strip()]
    assert 30 <= len(lines) <= 80, "readable at one sitting"
    golden(f"{name}.parallelize.py.txt", text)  # .txt keeps linters off


def test_no_plan_is_too_long_to_read(case_of: Callable[..., Case]) -> None:
    meshes = (Mesh(), Mesh(dp_replicate=8), Mesh(dp_shard=8), Mesh(dp_replicate=2, dp_shard=4))
    lengths = []
    for mesh, recompute, compiled, precision, steps in product(
        meshes, Recompute, Compile, set(Precision) - {Precision.FP8}, (1, 4)
    ):
        if recompute is Recompute.ATTENTION and compiled is Compile.BLOCK:
            continue
        case = case_of(
            ranks=mesh.world_size,
            mesh=mesh,
            shard=Shard.PARAMETERS if mesh.dp_shard > 1 else Shard.NONE,
            recompute=recompute,
            compile=compiled,
            precision=precision,
            gradient_accumulation_steps=steps,
        )
        text = text_of(case)
        assert max(len(line) for line in text.splitlines()) <= 108
        lengths.append(sum(1 for line in text.splitlines() if line.strip()))
    assert max(lengths) <= 80


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mesh": Mesh(dp_shard=4, tp=2)},
            r"this plan is fsdp2\+tp, and what of each layer is divided is found by tracing",
        ),
        (
            {"mesh": Mesh(pp=2, dp_replicate=4), "shard": Shard.NONE},
            r"this plan is ddp\+pp, and where its stages are cut",
        ),
        ({"shard": Shard.OPTIMIZER}, "shards the optimizer alone .ZeRO-1. over 8 ranks .PS291"),
        (
            {"mesh": Mesh(dp_replicate=4, cp=2), "shard": Shard.NONE},
            r"does not apply cp 2 without sharded parameters yet .*PS290",
        ),
        ({"mesh": Mesh(dp_shard=4, cp=2)}, r"it is fsdp2\+cp, and how blocks work on a rank's positions"),
        ({"mesh": Mesh(dp_shard=2, cp=2, tp=2)}, r"it is fsdp2\+cp\+tp, and how blocks work on a rank's"),
        ({"mesh": Mesh(dp_shard=8, ep=2)}, r"it is fsdp2\+ep, and how tokens travel to experts is found"),
        (
            {"mesh": Mesh(pp=2, tp=4, ep=2), "shard": Shard.NONE},
            r"does not apply ep 2 over a part of tp 4 without data ranks yet .*PS290",
        ),
        ({"offload": Offload.PARAMETERS}, "does not apply offload = parameters yet .PS292"),
        ({"precision": Precision.FP8}, "precision = fp8 yet .PS293"),
        (
            {"recompute": Recompute.ATTENTION, "compile": Compile.BLOCK},
            "recompute = attention with compile = block .PS294",
        ),
    ],
)
def test_refuses_what_it_cannot_express(
    fields: dict[str, Any], message: str, case_of: Callable[..., Case]
) -> None:
    with pytest.raises(EmitError, match=message):
        EMITTERS[Target.PYTHON](case_of(**fields))


@pytest.mark.parametrize(
    ("fields", "nearest"),
    [
        ({"mesh": Mesh(cp=8), "shard": Shard.NONE}, "recommend --applied"),
        ({"mesh": Mesh(pp=2, cp=4), "reshard_after_forward": False}, "--to torchrun"),
        ({"mesh": Mesh(dp_shard=4, cp=2)}, "--to torchrun"),
        ({"mesh": Mesh(cp=2, dp_replicate=2, dp_shard=2)}, "--to torchrun"),
    ],
)
def test_names_the_nearest_that_works(
    fields: dict[str, Any], nearest: str, case_of: Callable[..., Case]
) -> None:
    with pytest.raises(EmitError) as refused:
        EMITTERS[Target.PYTHON](case_of(**fields))
    assert nearest in refused.value.hint


def test_emitting_imports_nothing_heavy() -> None:
    heavy = {"torch", "pydantic", "tomli_w", "numpy", "rich", "parastrat.parse.plan_file"}
    code = f"import parastrat.emit, sys; print(*{heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_plan_file_comes_with_it(case_of: Callable[..., Case]) -> None:
    assert [file.path for file in emitted(Target.PYTHON, case_of())] == ["parallelize.py"]


def test_text_from_a_plan_file_stays_text(case_of: Callable[..., Case]) -> None:
    case = case_of()
    evil = '"""\nraise SystemExit(1)\n"\\'
    names_in(
        text_of(
            replace(
                case,
                hardware=replace(case.hardware, name=evil),
                launch=replace(case.launch, backend=evil, device=evil),
            )
        )
    )


def test_buffers_that_may_change_are_refused_or_sent(case_of: Callable[..., Case]) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 2))
    case = case_of()
    with pytest.raises(ValueError, match="buffers in the checkpoint would drift apart"):
        names_in(text_of(case))["parallelize"](model, None)
    for may in (True, None):
        known = {"parameters": 1, "layers": 1, "changing_buffers": may, "routed": False}
        changing = SimpleNamespace(ref="resnet-50", divides_sequences=True, **known)
        assert "follow_first_rank(model)" in text_of(replace(case, model=changing))  # type: ignore[arg-type]


def test_another_model_is_an_error(case_of: Callable[..., Case]) -> None:
    model = nn.Module()
    model.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(3))
    with pytest.raises(ValueError, match="planned for 32 blocks, found 0"):
        names_in(text_of(case_of()))["parallelize"](model, None)
    unknown = replace(case_of(), model=Unknown("model"))  # type: ignore[arg-type]
    assert "planned for" not in text_of(unknown)


def test_a_case_of_a_plan_file_reaches_the_ranks_that_try_it(case_of: Callable[..., Case]) -> None:
    case = replace(case_of(), model=Unknown("model"))  # type: ignore[arg-type]
    sent = pickle.loads(pickle.dumps(case))  # noqa: S301 - its own
    assert sent.plan == case.plan
    with pytest.raises(UnknownFactError, match=r"model\.layers"):
        sent.model.layers  # noqa: B018 - reading raises


class Bottleneck(nn.Module):
    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(first, second, 3), nn.Conv2d(second, second, 3)


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16)


def moe_layer() -> nn.Module:
    module = layer()
    module.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(4))
    return module


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformer": lambda: nn.Transformer(8, 2, 3, 2, 16, batch_first=True),
    "experts": lambda: nn.ModuleDict(
        {"embed": nn.Embedding(4, 8), "h": nn.ModuleList([moe_layer(), moe_layer()])}
    ),
    "experts in no layer": lambda: nn.ModuleDict(
        {"h": nn.ModuleList([layer(), layer()]), "experts": nn.ModuleList([layer(), layer()])}
    ),
    "stages": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Sequential(Bottleneck(4, 4), Bottleneck(4, 4)),
        nn.Sequential(Bottleneck(4, 8), Bottleneck(8, 8), Bottleneck(8, 8)),
    ),
    "itself a stack": lambda: nn.Sequential(layer(), layer(), nn.Linear(8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_finds_the_blocks_that_the_runtime_finds(name: str, case_of: Callable[..., Case]) -> None:
    model = MODELS[name]()
    case = case_of()
    case.model.routed = None  # type: ignore[misc]
    found = names_in(text_of(case))["repeated_blocks"](model)
    assert found
    assert sorted(found) == sorted(repeated_blocks(model).names)


def answers(how: str, folder: Path, ranks: int) -> list[dict[str, Any]]:
    script_on_ranks(ranks, COLLECTIVES, how, str(folder))
    return [json.loads((folder / f"{how}{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {**FSDP, "precision": Precision.BF16_MIXED, "recompute": Recompute.FULL},
        {
            "mesh": Mesh(dp_replicate=2, dp_shard=2),
            "precision": Precision.BF16,
            "reshard_after_forward": False,
        },
        {**DDP, "precision": Precision.BF16_MIXED, "recompute": Recompute.SELECTIVE},
    ],
    ids=["fsdp2-full", "hsdp-gathered", "ddp-selective"],
)
def test_makes_the_collectives_of_auto_parallelize(
    fields: dict[str, Any], case_of: Callable[..., Case], cpu_device: Device, tmp_path: Path
) -> None:
    ranks = fields["mesh"].world_size
    case = case_of(ranks=ranks, device=cpu_device, **fields)
    # known to have no changing buffers, or not known: two forms of the same thing
    known = False if fields["mesh"].dp_replicate == 1 else None
    model = SimpleNamespace(
        ref="gpt", parameters=1, layers=3, changing_buffers=known, routed=False, divides_sequences=True
    )
    case = replace(case, model=model)  # type: ignore[arg-type]
    (tmp_path / "plan.toml").write_text(plan_toml(case))
    (tmp_path / "parallelize.py").write_text(text_of(case))
    plain, ours = answers("plain", tmp_path, ranks), answers("parastrat", tmp_path, ranks)
    assert "parastrat import" not in text_of(case)
    assert "import parastrat" not in text_of(case)
    # ranks agree once on whether DDP has to search for parameters that the first loss does not reach
    agreed = ["c10d::allreduce_", 1]
    for rank in range(ranks):
        steps = ours[rank]["steps"]
        if case.plan.shard is Shard.NONE:
            steps.remove(agreed)
        assert plain[rank]["steps"] == steps
        assert plain[rank]["losses"] == ours[rank]["losses"]
        assert plain[rank]["keys"] == ours[rank]["keys"]
        # auto_parallelize lets the ranks agree on the plan first; then both send rank 0's weights
        sent = plain[rank]["wrapping"]
        assert sent == ours[rank]["wrapping"][-len(sent) :]


class Operators(TorchDispatchMode):
    """Notes every operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer())


def trained(model: nn.Module) -> tuple[list[str], list[torch.Tensor | None]]:
    """Return the operators of one forward and backward, and the gradients."""
    with Operators() as operators:
        model(torch.ones(2, LENGTH, WIDTH)).square().sum().backward()
    return operators.names, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("recompute", Recompute)
def test_recomputes_what_the_runtime_recomputes(
    recompute: Recompute, case_of: Callable[..., Case], cpu_device: Device
) -> None:
    case = case_of(
        ranks=1,
        device=cpu_device,
        mesh=Mesh(),
        shard=Shard.NONE,
        precision=Precision.FP32,
        recompute=recompute,
    )
    model = SimpleNamespace(layers=2, changing_buffers=False, routed=False, divides_sequences=True)
    names = names_in(text_of(replace(case, model=model)))  # type: ignore[arg-type]
    emitted_model, ours = layers(), layers()
    keys = list(emitted_model.state_dict())
    emitted_model = names["parallelize"](emitted_model, names["build_mesh"]())
    assert list(emitted_model.state_dict()) == keys
    for name in ("0", "1"):
        replace_module(ours, name, recomputing(ours.get_submodule(name), recompute))
    operators, gradients = trained(emitted_model)
    assert operators == trained(ours)[0]
    plain_operators, plain_gradients = trained(layers())
    assert (len(operators) > len(plain_operators)) == (recompute is not Recompute.NONE)
    torch.testing.assert_close(gradients, plain_gradients)
