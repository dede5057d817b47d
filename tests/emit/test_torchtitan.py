"""``plan_torchtitan.py``: the plan in torchtitan's words, as a recorder of those words hears them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from parastrat.emit import EMITTERS, EmitError, Target
from parastrat.plan import Compile, ContextMethod, Mesh, Offload, PipelineSchedule, Recompute, Shard
from parastrat.profiles import model_names
from parastrat.rules.torchtitan_models import BASELINES
from parastrat.sources import load_source
from parastrat.stack import Kernels
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case
    from parastrat.model import ModelSpec

PIPELINED: dict[str, Any] = {
    "mesh": Mesh(pp=4, dp_shard=2, tp=2),
    "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
    "gradient_accumulation_steps": 8,
    "sequence_parallel": True,
    "reshard_after_forward": False,
    "recompute": Recompute.SELECTIVE,
}


def spec(name: str) -> ModelSpec:
    return load_source(name).at(4096, Precision.BF16_MIXED, Kernels.EAGER)


@pytest.fixture
def titan_case(case_of: Callable[..., Case]) -> Callable[..., Case]:
    from dataclasses import replace

    def make(model: str = "llama-3.1-8b", **fields: Any) -> Case:
        ranks = fields.get("mesh", Mesh(dp_shard=8)).world_size
        return replace(case_of(ranks=ranks, **fields), model=spec(model))

    return make


def files(case: Case) -> dict[str, str]:
    return {file.path: file.text for file in EMITTERS[Target.TORCHTITAN](case)}


class Words(ModuleType):
    """A module of torchtitan whose classes and functions keep what they are called with."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in {"FullAC", "SelectiveAC", "Float8LinearConverter"}:
            return SimpleNamespace(Config=lambda **said: (name, said))
        if name == "Trainer":
            return SimpleNamespace(Config=object)
        if name == "model_registry":
            return lambda flavor, **said: (flavor, said)
        if name.endswith("Config"):
            return lambda **said: said
        return lambda: SimpleNamespace(training=SimpleNamespace())


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Case], Any]:
    names = [
        "config",
        "distributed",
        "distributed.activation_checkpoint",
        "models",
        "trainer",
        "components",
    ]
    names += ["components.quantization"]
    for family in {baseline.family for baseline in BASELINES.values()}:
        names += [f"models.{family}", f"models.{family}.config_registry"]
    for name in ("torchtitan", *(f"torchtitan.{name}" for name in names)):
        monkeypatch.setitem(sys.modules, name, Words(name))

    def run(case: Case) -> Any:
        found: dict[str, Any] = {}
        exec(compile(files(case)["plan_torchtitan.py"], "plan_torchtitan.py", "exec"), found)  # noqa: S102
        return found["planned"]()

    return run


def test_goldens(titan_case: Callable[..., Case], golden: Callable[[str, str], None]) -> None:
    for name, text in files(titan_case(**PIPELINED)).items():
        golden(f"torchtitan.{name}.txt", text)


def test_says_the_whole_plan(titan_case: Callable[..., Case], planned: Callable[[Case], Any]) -> None:
    config = planned(titan_case(**PIPELINED))
    stages = config.parallelism.pop("module_fqns_per_model_part")
    assert config.parallelism == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 2,
        "context_parallel_degree": 1,
        "tensor_parallel_degree": 2,
        "expert_parallel_degree": 1,
        "pipeline_parallel_degree": 4,
        "enable_sequence_parallel": True,
        "fsdp_reshard_after_forward": "never",
        "pipeline_parallel_schedule": "1F1B",
        "num_pp_microbatches": 8,
    }
    assert config.training.num_tokens_per_microbatch_per_dp_rank == 4096
    assert config.training.num_tokens_per_train_step == 4096 * 8 * 2
    assert config.training.max_context_length == 4096
    assert config.training.disable_cuda_graphs
    assert (config.training.dtype, config.training.mixed_precision_param) == ("float32", "bfloat16")
    assert config.activation_checkpoint == ("SelectiveAC", {})
    assert config.compile == {"enable": False}
    assert len(stages) == 4
    assert [name for stage in stages for name in stage] == [
        "tok_embeddings",
        *(f"layers.{layer}" for layer in range(32)),
        "norm",
        "lm_head",
    ]
    # the head is heavier than a layer
    assert len(stages[-1]) - 2 < 8


def test_number_formats_and_offload(
    titan_case: Callable[..., Case], planned: Callable[[Case], Any]
) -> None:
    config = planned(titan_case(precision=Precision.BF16, offload=Offload.PARAMETERS))
    assert (config.training.dtype, config.training.mixed_precision_param) == ("bfloat16", "bfloat16")
    assert config.training.enable_cpu_offload
    assert not config.training.disable_cuda_graphs
    assert planned(titan_case(precision=Precision.FP32)).training.mixed_precision_param == "float32"
    short = planned(titan_case("llama-3.1-405b", precision=Precision.FP8, compile=Compile.BLOCK))
    flavor, said = short.model_spec
    assert flavor == "405B"
    assert said["converters"] == [
        ("Float8LinearConverter", {"filter_fqns": ["lm_head"], "model_compile_enabled": True})
    ]
    assert short.compile == {"enable": True, "enable_async_tensor_parallel": False}


@pytest.mark.parametrize("name", BASELINES)
def test_every_model_can_be_said(
    name: str, titan_case: Callable[..., Case], planned: Callable[[Case], Any]
) -> None:
    assert name in model_names()
    config = planned(titan_case(name))
    assert config.model_spec == (BASELINES[name].flavor, {})
    assert config.parallelism["data_parallel_shard_degree"] == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recompute": Recompute.ATTENTION}, "recompute = attention"),
        ({"shard": Shard.OPTIMIZER}, "shard = optimizer"),
        ({"mesh": Mesh(dp_shard=4, cp=2), "cp_method": ContextMethod.RING}, "cp_method = ring"),
        ({"offload": Offload.OPTIMIZER}, "offload = optimizer"),
        ({"precision": Precision.FP16_MIXED}, "precision = fp16-mixed"),
        ({"model": "qwen3-14b", "precision": Precision.FP8}, "precision = fp8 for qwen3-14b"),
        ({"model": "gpt2"}, "torchtitan has no gpt2"),
        ({**PIPELINED, "mesh": Mesh(pp=32), "virtual_stages": 2}, "would have no layer of its own"),
    ],
)
def test_refuses_what_torchtitan_has_no_words_for(
    fields: dict[str, Any], message: str, titan_case: Callable[..., Case]
) -> None:
    with pytest.raises(EmitError, match=message):
        files(titan_case(**fields))


def test_refuses_a_loss_that_is_not_its_own(titan_case: Callable[..., Case]) -> None:
    from dataclasses import replace

    case = titan_case()
    other = replace(case, workload=replace(case.workload, loss_chunks=8))
    with pytest.raises(EmitError, match="a loss in 8 chunks"):
        files(other)


def test_refuses_another_optimizer(titan_case: Callable[..., Case]) -> None:
    from dataclasses import replace

    case = titan_case()
    other = replace(case, workload=replace(case.workload, optimizer=Optimizer.SGD))
    with pytest.raises(EmitError, match="optimizer = sgd"):
        files(other)
