"""``parallelize.py`` with stages: it reads well, and does what auto_parallelize does."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from emit.staged import MODELS as MAKE
from emit.staged import both_ways
from runtime.ranks import on_ranks
from torch.testing._internal.distributed.fake_pg import FakeStore
from versions import free_outputs

from parastrat.emit import EMITTERS, EmitError, Target
from parastrat.emit.division import Division, Place, Reading, Style
from parastrat.emit.python import emit
from parastrat.emit.python_names import blocks_list, stage_list
from parastrat.emit.staging import Alike, Staging
from parastrat.errors import ModelError, ParastratError
from parastrat.plan import Compile, Mesh, PipelineSchedule, Recompute, Shard
from parastrat.runtime.emission import proven_division, proven_staging
from parastrat.runtime.pipeline.example import Example
from parastrat.runtime.pipeline.passing import NotStagedError
from parastrat.runtime.pipeline.trial import tried
from parastrat.runtime.pipeline.written import staged
from parastrat.schedules import SINGLE, SPLIT
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.hardware import Device
    from parastrat.plan import Plan

MODELS = Path(__file__).parent / "staged.py"
SHARED: dict[str, Any] = {"sequence_parallel": True, "loss_parallel": True}
SHARDED: dict[str, Any] = {"shard": Shard.PARAMETERS, "reshard_after_forward": False}
BLOCKS = tuple(f"model.layers.{index}" for index in range(32))
STAGING = Staging(
    blocks=BLOCKS,
    stages=(("model.embed_tokens", *BLOCKS[:17]), (*BLOCKS[17:], "model.norm", "lm_head")),
    alike=Alike(sizes=(4096,), dtype="float32"),
    output="logits",
    caches=True,
    model="LlamaForCausalLM of transformers",
)
DIVISION = Division(
    container="model.layers",
    blocks=32,
    places=(
        Place(name="model.embed_tokens", style=Style.EMBEDDING),
        *(Place(name=f"model.layers.*.mlp.{each}_proj", style=Style.COLUMN) for each in ("gate", "up")),
        Place(name="model.layers.*.mlp.down_proj", style=Style.ROW),
        Place(name="model.norm", style=Style.WHOLE),
        Place(name="lm_head", style=Style.HEAD),
    ),
)
#: positions are divided, and logits
SHARES = replace(
    DIVISION,
    places=(
        Place(name="model.layers.0", style=Style.FIRST_OF_SHARE, reading=Reading(keyword="hidden_states")),
        *(replace(place, style=Style.HEAD_DIVIDED) for place in DIVISION.places[-1:]),
        Place(name="model.layers.31", style=Style.LAST_OF_SHARE),
    ),
)
TIED = ((0, "model.embed_tokens.weight"), (1, "lm_head.weight"))


def written(case: Case, staging: Staging, division: Division | None = None) -> str:
    (file,) = emit(case, division, staging)
    compile(file.text, file.path, "exec")
    return file.text


@pytest.mark.parametrize(
    ("name", "fields", "changes"),
    [
        ("pp", {"mesh": Mesh(pp=2), "ranks": 2, "shard": Shard.NONE}, {}),
        (
            "fsdp2-pp",
            {"mesh": Mesh(pp=2, dp_shard=4), **SHARDED, "recompute": Recompute.FULL},
            {"alike": Alike(sizes=(4096,), dtype="bfloat16"), "tied": TIED},
        ),
    ],
)
def test_goldens(
    name: str,
    fields: dict[str, Any],
    changes: dict[str, Any],
    case_of: Callable[..., Case],
    golden: Callable[[str, str], None],
) -> None:
    case = case_of(gradient_accumulation_steps=8, **fields)
    text = written(case, replace(STAGING, **changes))
    assert "import parastrat" not in text
    golden(f"{name}.parallelize.py.txt", text)


def test_no_plan_is_too_long_to_read(case_of: Callable[..., Case]) -> None:
    meshes = (Mesh(pp=2), Mesh(pp=2, dp_replicate=2, dp_shard=2), Mesh(pp=2, dp_replicate=4))
    lengths = {}
    for mesh, recompute, schedule in product(meshes, Recompute, PipelineSchedule):
        if recompute is Recompute.SELECTIVE and schedule in SPLIT:
            continue  # refused
        case = case_of(
            ranks=mesh.world_size,
            mesh=mesh,
            recompute=recompute,
            pp_schedule=schedule,
            virtual_stages=1 if schedule in SINGLE else 2,
            gradient_accumulation_steps=16,
            **(SHARDED if mesh.dp_shard > 1 else {"shard": Shard.NONE}),
        )
        text = written(case, replace(STAGING, tied=TIED, drops=True))
        assert max(text.splitlines(), key=len)[108:] == ""
        lengths[mesh, recompute] = sum(1 for line in text.splitlines() if line.strip())
    # a policy of recompute has up to 20 lines of its own
    assert max(length for (_, recompute), length in lengths.items() if recompute is Recompute.NONE) <= 138
    assert max(lengths.values()) <= 156


@pytest.mark.parametrize(
    ("mesh", "lines"),
    [
        (Mesh(pp=2, tp=2), ["divide(model, mesh", "register_post_accumulate_grad_hook"]),
        (Mesh(pp=2, dp_replicate=2, tp=2), ["packed.append(parameter.grad.to_local())"]),
        (Mesh(pp=2, dp_shard=2, tp=2), ["divide(model, mesh", "fully_shard(stage, **options"]),
    ],
)
def test_layers_are_divided_before_stages_drop_any(
    mesh: Mesh, lines: list[str], case_of: Callable[..., Case]
) -> None:
    fields = SHARDED if mesh.dp_shard > 1 else {"shard": Shard.NONE}
    text = written(case_of(ranks=mesh.world_size, mesh=mesh, **fields), STAGING, DIVISION)
    assert max(text.splitlines(), key=len)[108:] == ""
    assert sum(1 for line in text.splitlines() if line.strip()) <= 152
    places = [text.rindex(line) for line in [*lines, "return Pipeline("]]
    assert places == sorted(places)
    assert text.index('divide(model, mesh["tp"])') < text.index("Stage(model, rank)")


#: two lists of blocks; an early part's output passes to all stages, and is written to
PASSING_ON = Staging(
    blocks=("down.0", "down.1", "up.2", "up.3", "up.4", "last.middle"),
    stages=(("stem", "down.0", "down.1"), ("bottom", "up.2", "up.3"), ("up.4", "last.middle", "head")),
    received=((), (("stem", 1), ("down.1", 0)), (("stem", 1), ("up.3", 0))),
    takes="**inputs",
    writes=True,
    statistics=True,
)


def test_several_tensors_pass(case_of: Callable[..., Case], golden: Callable[[str, str], None]) -> None:
    mesh = Mesh(pp=3, dp_replicate=2)
    case = case_of(ranks=6, mesh=mesh, shard=Shard.NONE, gradient_accumulation_steps=3)
    text = written(case, PASSING_ON)
    assert max(text.splitlines(), key=len)[108:] == ""
    golden("pp-passing.parallelize.py.txt", text)
    sharded = {**SHARDED, "mesh": Mesh(pp=3, dp_shard=2)}
    text = written(case_of(ranks=6, gradient_accumulation_steps=3, **sharded), PASSING_ON)
    assert "copy.deepcopy(model).to(torch.bfloat16)" in text
    assert text.index('fully_shard(norm, mesh=options["mesh"]') < text.index(
        "fully_shard(stage.model.get_sub"
    )


def test_names_are_numbered_and_sliced() -> None:
    blocks = PASSING_ON.blocks
    assert eval(blocks_list(blocks)) == list(blocks)  # noqa: S307 - it is code
    assert blocks_list(blocks[2:5]) == '[f"up.{index}" for index in range(2, 5)]'
    assert stage_list(("stem", *blocks[1:4], "other", blocks[5]), blocks) == (
        '["stem", *BLOCKS[1:4], "other", *BLOCKS[5:]]'
    )
    many = [f"a.long.name.of.a.part.{index}" for index in range(40)]
    text = stage_list(many, ())
    assert eval(text) == many  # noqa: S307 - it is code
    assert max(map(len, text.splitlines())) <= 104


def test_stages_of_blocks_alone_are_slices(case_of: Callable[..., Case]) -> None:
    stages = (
        ("model.embed_tokens", *BLOCKS[:8]),
        BLOCKS[8:16],
        BLOCKS[16:24],
        (*BLOCKS[24:], "model.norm", "lm_head"),
    )
    case = case_of(ranks=4, mesh=Mesh(pp=4), shard=Shard.NONE, gradient_accumulation_steps=4)
    text = written(case, replace(STAGING, stages=stages))
    assert (
        """
    ["model.embed_tokens", *BLOCKS[:8]],
    BLOCKS[8:16],
    BLOCKS[16:24],
    [*BLOCKS[24:], "model.norm", "lm_head"],
"""
        in text
    )


@pytest.mark.parametrize("first_end", [17, 32])
def test_positions_are_whole_between_stages(first_end: int, case_of: Callable[..., Case]) -> None:
    stages = (
        ("model.embed_tokens", *BLOCKS[:first_end]),
        (*BLOCKS[first_end:], "model.norm", "lm_head"),
    )
    case = case_of(ranks=4, mesh=Mesh(pp=2, tp=2), shard=Shard.NONE, **SHARED)
    text = written(case, replace(STAGING, stages=stages), SHARES)
    assert max(text.splitlines(), key=len)[108:] == ""
    assert sum(1 for line in text.splitlines() if line.strip()) <= 135
    plan, edges = text.split("tp.parallelize_module(model, mesh, plan")
    assert '"lm_head": tp.ColwiseParallel(use_local_output=False)' in plan
    assert '"model.layers.0"' not in plan
    # a stage without blocks has none that is the first
    assert ("in filter(None, [[name for name" in edges) == (first_end == 32)
    assert "tp.parallelize_module(model.get_submodule(own[-1]), mesh, last)" in edges
    assert "if inputs.shape[1] % 2:" in edges
    assert "self.sent.clone(memory_format=torch.contiguous_format)" in edges
    assert "with tp.loss_parallel():" in edges
    assert ".to_local() / self.total" in edges


@pytest.mark.parametrize(
    ("division", "options", "said"),
    [
        (DIVISION, SHARED, "shares: positions (sequence_parallel) and logits (loss_parallel)."),
        (DIVISION, {"loss_parallel": True}, "shares: logits (loss_parallel)."),
        (SHARES, SHARED, ""),
        (DIVISION, {}, ""),
    ],
)
@pytest.mark.parametrize("pp", [1, 2])
def test_what_is_not_divided_is_told(
    pp: int, division: Division, options: dict[str, Any], said: str, case_of: Callable[..., Case]
) -> None:
    case = case_of(ranks=2 * pp, mesh=Mesh(pp=pp, tp=2), shard=Shard.NONE, **options)
    (file,) = emit(case, division, STAGING if pp > 1 else None)
    heading = file.text.partition('"""\n\n')[0]
    assert ("though the plan counts on" in heading) == bool(said)
    assert said in heading


def test_positions_of_other_inputs_are_not_known(case_of: Callable[..., Case]) -> None:
    case = case_of(ranks=4, mesh=Mesh(pp=2, tp=2), shard=Shard.NONE, precision=Precision.FP32, **SHARED)
    shares = replace(SHARES, container="", blocks=4, places=SHARES.edges)
    with pytest.raises(EmitError, match="the input has others than what passes the stages"):
        proven_staging(f"{MODELS}:vectors", case, shares)


def test_layers_divided_together_stay_in_one_stage(case_of: Callable[..., Case]) -> None:
    outside = replace(DIVISION, places=(Place(name="model.projection", style=Style.COLUMN),))
    case = case_of(ranks=4, mesh=Mesh(pp=2, tp=2), shard=Shard.NONE, precision=Precision.FP32)
    with pytest.raises(EmitError, match=r"model.projection is divided together with others outside of"):
        proven_staging(f"{MODELS}:layers", case, outside)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mesh": Mesh(pp=2, tp=4)}, "what of each layer is divided"),
        ({"compile": Compile.BLOCK}, "compile = block, which has not been tried so"),
        (
            {"mesh": Mesh(pp=2, dp_shard=4), "shard": Shard.PARAMETERS},
            "does not reshard after forward with pp 2 .PS298",
        ),
        ({"gradient_accumulation_steps": 7}, "7 micro-batches for 8 stages .PS701"),
        (
            {
                "gradient_accumulation_steps": 17,
                "virtual_stages": 2,
                "pp_schedule": PipelineSchedule.INTERLEAVED,
            },
            "17 micro-batches do not divide into 2 rounds of pp=8 .PS702",
        ),
        ({"pp_schedule": PipelineSchedule.ZBV}, "with virtual_stages = 1 .PS704"),
        (
            {"virtual_stages": 2, "pp_schedule": PipelineSchedule.GPIPE},
            "GPipe with virtual_stages = 2 .PS708",
        ),
    ],
)
def test_what_is_not_done_is_refused(
    fields: dict[str, Any], message: str, case_of: Callable[..., Case]
) -> None:
    with pytest.raises(EmitError, match=message) as refused:
        emit(case_of(**{"mesh": Mesh(pp=8), "shard": Shard.NONE, **fields}), staging=STAGING)
    assert refused.value.hint.startswith(("plan", "name a model", "use", "set"))


def test_a_plan_file_alone_does_not_say_where_to_cut(case_of: Callable[..., Case]) -> None:
    case = case_of(mesh=Mesh(pp=2, dp_replicate=4), shard=Shard.NONE)
    with pytest.raises(EmitError, match=r"this plan is ddp\+pp, and where its stages are cut") as refused:
        EMITTERS[Target.PYTHON](case)
    assert "--model path.py:callable" in refused.value.hint


def test_a_preset_is_staged_as_transformers_builds_it(case_of: Callable[..., Case]) -> None:
    case = case_of(ranks=2, mesh=Mesh(pp=2), shard=Shard.NONE, precision=Precision.BF16)
    case = replace(case, model=SimpleNamespace(ref="llama-3.2-1b", divides_sequences=True))  # type: ignore[arg-type]
    staging = proven_staging("llama-3.2-1b", case)
    assert staging.blocks == BLOCKS[:16]
    assert (staging.alike, staging.model) == (Alike(sizes=(2048,), dtype="bfloat16"), STAGING.model)
    assert "Model: LlamaForCausalLM of transformers, or another" in written(case, staging)


def test_a_preset_of_another_form_is_not_built(case_of: Callable[..., Case]) -> None:
    with pytest.raises(ModelError, match=r"grok-1 is known by its sizes alone"):
        proven_staging("grok-1", case_of(ranks=2, mesh=Mesh(pp=2), shard=Shard.NONE))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("normed", {"recompute": Recompute.FULL}, "recompute = full would change them twice"),
        ("normed", {"precision": Precision.BF16}, "may change while it trains, which needs fp32 weights"),
        ("shared", {}, "is called several times, and a call of it passes to stage 1"),
        ("beside", {}, "scale stands beside the parts that stages run"),
        ("pairs", {}, "returns tuple, neither a tensor nor with logits"),
        ("functional", {}, "stage 1 reads embed.weight, outside of its parts"),
        ("decoder", {"mesh": Mesh(pp=8), "ranks": 8}, "can be cut into 7 stages at most"),
    ],
)
def test_what_a_few_lines_do_not_say_is_told(
    name: str, fields: dict[str, Any], message: str, case_of: Callable[..., Case]
) -> None:
    plan = {"mesh": Mesh(pp=2), "ranks": 2, "shard": Shard.NONE, "precision": Precision.FP32, **fields}
    with pytest.raises(ParastratError, match=message):
        proven_staging(f"{MODELS}:{name}", case_of(**plan))


def test_stages_that_compute_something_else_are_found(case_of: Callable[..., Case]) -> None:
    case = case_of(
        ranks=2, mesh=Mesh(pp=2), shard=Shard.NONE, precision=Precision.FP32, gradient_accumulation_steps=2
    )
    draft = staged(MAKE["layers"]().to("meta"), case.plan, Example())
    staging = draft.stagings[0]
    text = written(case, staging)
    assert tried(draft, staging, defined(text)) == staging
    for right, wrong in (
        ("received = received", "received = received + received"),
        ("self.sent = output", "self.sent = output * 2"),
    ):
        assert right in text
        with pytest.raises(NotStagedError, match="do not compute"):
            tried(draft, staging, defined(text.replace(right, wrong)))


def test_what_passes_is_found_to_be_something_else(case_of: Callable[..., Case]) -> None:
    case = case_of(
        ranks=2, mesh=Mesh(pp=2), shard=Shard.NONE, precision=Precision.FP32, gradient_accumulation_steps=2
    )
    module = MAKE["unet"]().to("meta")
    draft = staged(module, case.plan, Example(inputs=torch.zeros(2, 3, 16, 16)))
    (staging,) = draft.stagings
    assert len(staging.received[1]) > 1
    text = written(case, staging)
    assert tried(draft, staging, defined(text)) == staging
    for right, wrong in (
        ("received[place] = tensor", "received[place] = tensor + 1"),
        ("leaves[place] for", "leaves[place] * 2 for"),
        ("zip(self.receives, received)", "zip(self.receives, received[:1])"),
        ("if tensor not in weights:", "if False:"),
    ):
        assert right in text
        changed = defined(text.replace(right, wrong))
        if wrong == "if False:":
            stage = changed["Stage"](MAKE["unet"](), 1)
            assert stage.state_dict().keys() == {f"model.{name}" for name in module.state_dict()}
            own = defined(text)["Stage"](MAKE["unet"](), 1).state_dict()
            assert {name.split(".")[1] for name in own} == {*staging.stages[1]}
            continue
        with pytest.raises(NotStagedError, match="do not compute"):
            tried(draft, staging, changed)


def defined(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "parallelize.py", "exec"), names)  # noqa: S102 - the emitted code is what is tested
    return names


PLAIN: dict[str, Any] = {"mesh": Mesh(pp=2), "shard": Shard.NONE}
CHUNKED: dict[str, Any] = {**PLAIN, "virtual_stages": 2}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "1F1B": ("llama", PLAIN),
    "four": ("tied", {"mesh": Mesh(pp=4), "shard": Shard.NONE}),
    "vectors": ("vectors", PLAIN),
    "gpipe": ("dropping", {**PLAIN, "pp_schedule": PipelineSchedule.GPIPE}),
    "interleaved": ("layers", {**CHUNKED, "precision": Precision.BF16_MIXED}),
    "looped": ("layers", {**CHUNKED, "pp_schedule": PipelineSchedule.LOOPED_BFS}),
    "zero-bubble": ("layers", {**CHUNKED, "pp_schedule": PipelineSchedule.INTERLEAVED_ZERO_BUBBLE}),
    "zbv": ("layers", {**CHUNKED, "pp_schedule": PipelineSchedule.ZBV}),
    "dual-pipe": ("dropping", {**CHUNKED, "pp_schedule": PipelineSchedule.DUAL_PIPE_V}),
    "attention": ("llama", {**PLAIN, "recompute": Recompute.ATTENTION, "precision": Precision.BF16}),
    "ddp": (
        "tied",
        {"mesh": Mesh(pp=2, dp_replicate=2), "shard": Shard.NONE, "recompute": Recompute.FULL},
    ),
    "fp16": ("layers", {**PLAIN, "precision": Precision.FP16_MIXED}),
    "ddp-chunked": ("layers", {**CHUNKED, "mesh": Mesh(pp=2, dp_replicate=2)}),
    "fsdp2": ("tied", {"mesh": Mesh(pp=2, dp_shard=2), **SHARDED, "precision": Precision.BF16_MIXED}),
    "fsdp2-full": (
        "layers",
        {"mesh": Mesh(pp=2, dp_shard=2), **SHARDED, "virtual_stages": 2, "recompute": Recompute.FULL},
    ),
    "fsdp2-zbv": (
        "layers",
        {
            "mesh": Mesh(pp=2, dp_shard=2),
            **SHARDED,
            "virtual_stages": 2,
            "pp_schedule": PipelineSchedule.ZBV,
        },
    ),
}

#: stages that pass several tensors, or of several shapes
PASSING: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet": ("resnet", PLAIN),
    "resnet-ddp": ("resnet", {**PLAIN, "mesh": Mesh(pp=2, dp_replicate=2)}),
    "resnet-fsdp2": (
        "resnet",
        {"mesh": Mesh(pp=2, dp_shard=2), **SHARDED, "precision": Precision.BF16_MIXED},
    ),
    "unet": ("unet", {"mesh": Mesh(pp=4), "shard": Shard.NONE}),
    "unet-chunked": ("unet", {**CHUNKED, "precision": Precision.BF16_MIXED}),
    "lstm": ("lstm", PLAIN),
    "vit": ("vit", {"mesh": Mesh(pp=2, dp_replicate=2), "shard": Shard.NONE, "recompute": Recompute.FULL}),
    "vit-zbv": ("vit", {**CHUNKED, "pp_schedule": PipelineSchedule.ZBV}),
    "t5": ("t5", PLAIN),
    "t5-fsdp2": ("t5", {"mesh": Mesh(pp=2, dp_shard=2), **SHARDED, "precision": Precision.BF16_MIXED}),
    "skips": ("skips", {**CHUNKED, "mesh": Mesh(pp=2, dp_replicate=2)}),
    "lists": ("lists", PLAIN),
    "normed": ("normed", {**PLAIN, "mesh": Mesh(pp=2, dp_replicate=2)}),
}

#: the ranks of the proof come before those of the plan: too long for every time
DIVIDED: dict[str, tuple[str, dict[str, Any]]] = {
    "tp": (
        "llama",
        {**PLAIN, "mesh": Mesh(pp=2, tp=2), "precision": Precision.BF16_MIXED, "recompute": Recompute.FULL},
    ),
    "tp-chunked": ("decoder", {**CHUNKED, "mesh": Mesh(pp=2, tp=2)}),
    "tp-shared": ("llama", {**PLAIN, "mesh": Mesh(pp=2, tp=2), **SHARED}),
    "tp-shared-chunked": (
        "decoder",
        {**CHUNKED, "mesh": Mesh(pp=2, tp=2), **SHARED, "recompute": Recompute.FULL},
    ),
}


def totals(found: dict[str, Any], plan: Plan) -> list[Any]:
    """Messages with their bytes; all-reduces in sum where torch's cross entropy sends 3 for our 2."""
    if not plan.loss_parallel:
        return found["messages"]
    sums: list[Counter[str]] = [Counter() for _ in found["messages"]]
    for total, messages in zip(sums, found["messages"], strict=True):
        for kind, size in messages:
            total[kind] += size
    return [
        (total, sorted(message for message in messages if message[0] != "allreduce"))
        for total, messages in zip(sums, found["messages"], strict=True)
    ]


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_gradients_that_overflow_are_dropped_and_the_scale_halved(case_of: Callable[..., Case]) -> None:
    case = case_of(ranks=2, mesh=Mesh(pp=2), shard=Shard.NONE, precision=Precision.FP16_MIXED)
    unscale = defined(written(case, STAGING))["Pipeline"].unscale
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    pipeline = SimpleNamespace(
        scale=8.0, good_steps=1998, device=torch.device("cpu"), parameters=lambda: weights
    )
    found = []
    for worst in (1.0, 1.0, math.inf, 1.0):
        for weight in weights:
            weight.grad = torch.tensor([8.0, 16.0 * worst])
        unscale(pipeline)
        found.append((weights[0].grad, pipeline.scale, pipeline.good_steps))
    gradients, *numbers = zip(*found, strict=True)
    assert [g if g is None else g.tolist() for g in gradients] == [[1, 2], [1, 2], None, [1, 2]]
    assert numbers == [(8, 16, 8, 8), (1999, 2000, 0, 1)]


@free_outputs
@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "cell",
    [
        *drawn(list(CELLS), 1),
        *drawn(list(PASSING), 1),
        *(DIVIDED if "PARASTRAT_TEST_ALL" in os.environ else ()),
    ],
)
def test_sends_what_auto_parallelize_sends(
    cell: str, case_of: Callable[..., Case], cpu_device: Device
) -> None:
    name, fields = {**CELLS, **PASSING, **DIVIDED}[cell]
    ranks = fields["mesh"].world_size
    plan = {"precision": Precision.FP32, "gradient_accumulation_steps": 4, "micro_batch_size": 2, **fields}
    case = case_of(ranks=ranks, device=cpu_device, **plan)
    case = replace(case, model=SimpleNamespace(ref=name, divides_sequences=True))  # type: ignore[arg-type]
    ref = f"{MODELS}:{name}"
    division = proven_division(ref, case) if case.plan.mesh.tp > 1 else None
    text = written(case, proven_staging(ref, case, division), division)
    found = on_ranks(ranks, both_ways, name, text, case.plan)
    for emitted, ours in found:
        assert emitted["losses"] == pytest.approx(ours["losses"], rel=1e-6)
        assert len(set(emitted["losses"])) == len(emitted["losses"])
        if not emitted["statistics"]:  # sent once a step, not with each micro-batch
            assert totals(emitted, case.plan) == totals(ours, case.plan)
        assert {kind for kind, _ in emitted["messages"][0]} >= {"send", "recv", "allreduce"}
        for key, value in emitted["statistics"].items() if emitted is found[0][0] else ():
            assert value == pytest.approx(ours["statistics"][key], rel=1e-5)
        # auto_parallelize saves a tied weight by both names
        assert set(emitted["keys"]) <= set(ours["keys"])
    assert {key for emitted, _ in found for key in emitted["keys"]} == set(MAKE[name]().state_dict())
