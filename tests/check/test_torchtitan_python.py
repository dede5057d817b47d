"""Configurations of torchtitan in Python: mistakes of form and of the job, and what nobody can tell."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from check.bad_configs import Bad
from check.bad_torchtitan_python import (
    BAD_TORCHTITAN_PYTHON,
    GOOD_TORCHTITAN_PYTHON,
    STAGES,
    WHOLE,
)

from parastrat.assess import assess, columns_of
from parastrat.case import Facts
from parastrat.check import Checked, check_file, config_files
from parastrat.check.known import Given
from parastrat.config_file import OPEN, ConfigFormat
from parastrat.emit import EMITTERS, Target
from parastrat.errors import ConfigError
from parastrat.finding import Severity
from parastrat.parse.python_source import read_source
from parastrat.parse.torchtitan_plan import python_fields, python_workload
from parastrat.parse.torchtitan_python import PythonConfig, python_configs
from parastrat.plan import Backend, Compile, Mesh, Offload, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.profiles.files import read_format
from parastrat.rules import findings_of
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.case import Case


def _checked(folder: Path, text: str, given: Given | None = None) -> Checked:
    path = folder / "configs.py"
    path.write_text(text)
    return check_file(path, given or Given())


def _alarms(checked: Checked) -> list[str]:
    return [found.code for found in checked.findings if found.severity is not Severity.INFO]


def _configs(text: str) -> dict[str, PythonConfig]:
    known = read_format(ConfigFormat.TORCHTITAN_PYTHON.value)
    return {config.function: config for config in python_configs(read_source(text), known)}


def _line(checked: Checked, code: str) -> str:
    (found,) = [each for each in checked.findings if each.code == code]
    return checked.lines[(found.line or 0) - 1].strip()


@pytest.mark.parametrize("bad", BAD_TORCHTITAN_PYTHON, ids=lambda bad: f"{bad.code}-{bad.what}")
def test_every_mistake_is_found_where_it_is(tmp_path: Path, bad: Bad) -> None:
    checked = _checked(tmp_path, bad.text)
    assert bad.code in _alarms(checked)
    for found in checked.findings:
        assert found.line is not None
        assert 1 <= found.line <= len(checked.lines)


@pytest.mark.parametrize("text", GOOD_TORCHTITAN_PYTHON, ids=range(len(GOOD_TORCHTITAN_PYTHON)))
def test_good_files_have_no_alarms(tmp_path: Path, text: str) -> None:
    checked = _checked(tmp_path, text)
    assert checked.format is ConfigFormat.TORCHTITAN_PYTHON
    assert _alarms(checked) == []


def test_what_functions_hand_on_is_known_and_stands_where_they_are_called(tmp_path: Path) -> None:
    configs = _configs(WHOLE)
    derived = configs["llama3_70b_cp4"]
    assert derived.bases == ("llama3_70b",)
    assert derived.file.get("parallelism") == {
        "class": "ParallelismConfig",
        "tensor_parallel_degree": 8,
        "data_parallel_shard_degree": 2,
        "context_parallel_degree": 4,
    }
    assert configs["llama3_70b"].file.number("parallelism.context_parallel_degree") is None
    assert derived.file.number("training.num_tokens_per_microbatch_per_dp_rank") == 16384
    bad = WHOLE.replace("context_parallel_degree = 4", "context_parallel_degree = 3")
    assert _line(_checked(tmp_path, bad), "PS554") == "config = llama3_70b()"


def test_what_the_base_is_told_is_not_told_again(tmp_path: Path) -> None:
    bad = WHOLE.replace("keep_latest_k=3", "keep_latest_k=1")
    assert _alarms(_checked(tmp_path, bad)) == ["PS558"]
    own = bad.replace("    config.training.steps = 500", "    config.checkpoint.keep_latest_k = -1")
    assert _alarms(_checked(tmp_path, own)) == ["PS558", "PS558"]


def test_what_nobody_can_tell_is_open() -> None:
    text = STAGES.replace("    return", "    from mine import change\n    change(config)\n    return")
    file = _configs(text)["staged"].file
    assert file.get("parallelism.tensor_parallel_degree") is OPEN
    assert file.get("activation_checkpoint.class") is OPEN
    registry = "torchtitan.models.deepseek_v3.config_registry"
    changed = STAGES.replace(
        "    return", f"    from {registry} import enable\n    enable(config)\n    return"
    )
    assert _configs(changed)["staged"].file.get("parallelism.tensor_parallel_degree") is OPEN
    shipped = _configs(STAGES.replace("    config.training = ", "    training = "))["staged"].file
    assert shipped.get("training.steps") is OPEN
    assert shipped.get("model_spec.flavor") == "16B"
    assert shipped.get("optimizer.class") == "default_adamw"


def _fields(text: str, function: str = "staged") -> Mapping[str, Any]:
    return python_fields(_configs(text)[function].file)


def test_what_a_plan_has_no_word_for_is_open() -> None:
    fields = _fields(STAGES)
    assert (fields["virtual_stages"], fields["gradient_accumulation_steps"]) == (2, 8)
    parts = STAGES.replace(
        '[["tok_embeddings"], ["layers.0"], ["layers.1"], ["norm", "lm_head"]]', "parts()"
    )
    assert _fields(parts)["virtual_stages"] is None
    assert _fields(parts.replace("Interleaved1F1B", "1F1B"))["virtual_stages"] == 1
    # rounds that do not fill a pipeline
    rounds = STAGES.replace("=4 * 8 * 4096", "=4 * 2 * 4096").replace(
        "num_pp_microbatches=8", "num_pp_microbatches=1"
    )
    assert _fields(rounds)["gradient_accumulation_steps"] is None
    filled = STAGES.replace("=4 * 8 * 4096", "=4 * 16 * 4096")
    assert _fields(filled)["gradient_accumulation_steps"] == 16
    assert _fields(STAGES)["sequence_parallel"] is True
    whole = STAGES.replace(
        "tensor_parallel_degree=2", "tensor_parallel_degree=2, enable_sequence_parallel=False"
    )
    assert _fields(whole)["sequence_parallel"] is False


def test_without_its_loss_nothing_is_said_of_a_jobs_memory(tmp_path: Path) -> None:
    given = Given(hardware=load_hardware("dgx-h100"))
    small = WHOLE[: WHOLE.index("def llama3_70b_cp4")].replace("shard_degree=8", "shard_degree=1")
    assert "PS101" not in _checked(tmp_path, small, given).open
    unknown = small.replace("loss=ChunkedLossWrapper.Config(", "loss=make(")
    assert "PS101" in _checked(tmp_path, unknown, given).open


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            WHOLE.replace("LENGTH = 8192", "LENGTH = 8201").replace("=256 * LENGTH", "=-1"),
            "16402 tokens of a micro-batch are no multiple of tp 8 = 8",
        ),
        (
            WHOLE.replace("context_parallel_degree = 4", "context_parallel_degree = 3"),
            "16384 tokens of a micro-batch are no multiple of tp 8 x 2 x cp 3 = 48",
        ),
        (
            WHOLE.replace("tensor_parallel_degree=8, ", "").replace(
                "context_parallel_degree = 4", "context_parallel_degree = 3"
            ),
            "16384 tokens of a micro-batch are no multiple of 2 x cp 3 = 6",
        ),
        (
            WHOLE.replace("=256 * LENGTH", "=250 * LENGTH"),
            "2048000 tokens of a step are no multiple of 16384 tokens x 8 data-parallel ranks",
        ),
        (
            WHOLE.replace("=256 * LENGTH", "=255 * LENGTH").replace("shard_degree=8", "shard_degree=1"),
            "2088960 tokens of a step are no multiple of 16384 tokens",
        ),
        (
            STAGES.replace("=4 * 8 * 4096", "=4 * 4 * 4096"),
            (
                "65536 tokens of a step are no multiple of 4096 tokens x 8 micro-batches of the pipeline "
                "x 4 data-parallel ranks"
            ),
        ),
    ],
    ids=["tp", "tp and cp", "cp", "ranks", "one rank", "pipeline"],
)
def test_the_factors_are_told(tmp_path: Path, text: str, message: str) -> None:
    assert message in [found.message for found in _checked(tmp_path, text).findings]


@pytest.mark.parametrize(
    ("new", "hint"),
    [
        ("debug=DebugConfig(deterministic=1)", "write True or False"),
        ('debug=DebugConfig(deterministic="true")', "write True without quotes"),
        ("debug=DebugConfig(save_config_file=3)", "write text in quotes"),
        ("debug=DebugConfig(sead=3)", "did you mean seed?"),
        ('debug=DebugConfig(seed="3")', "write 3 without quotes"),
    ],
)
def test_mends_are_pythons(tmp_path: Path, new: str, hint: str) -> None:
    (found,) = _checked(tmp_path, WHOLE.replace("debug=DebugConfig(seed=7)", new)).findings
    assert found.fix == hint
    assert (found.line, found.column) == (32, 27)


def test_words_of_earlier_versions_leave_defaults_open(tmp_path: Path) -> None:
    pipelined = WHOLE.replace(
        "config.training.steps = 500", "config.parallelism.pipeline_parallel_degree = 2"
    )
    assert "PS555" in _alarms(_checked(tmp_path, pipelined))
    earlier = pipelined.replace(
        "    return config\n", "    config.training.local_batch_size = 2\n    return config\n"
    )
    assert _alarms(_checked(tmp_path, earlier)) == ["PS608"]
    unsaid = read_source(WHOLE.replace("activation_checkpoint=FullAC.Config(),", ""))
    known = read_format(ConfigFormat.TORCHTITAN_PYTHON.value)
    policies = [
        [
            config.file.get("activation_checkpoint.class")
            for config in python_configs(unsaid, known, of_now=now)
        ]
        for now in (True, False)
    ]
    assert policies == [["SelectiveAC.Config"] * 2, [OPEN] * 2]
    budget = WHOLE.replace("FullAC.Config()", "MemoryBudgetAC.Config()")
    budget = budget.replace(
        "        compile=CompileConfig(enable=True, enable_async_tensor_parallel=True),\n", ""
    )
    assert _alarms(_checked(tmp_path, budget)) == ["PS556"]
    assert _alarms(_checked(tmp_path, budget.replace("max_context_length=", "seq_len="))) == ["PS608"]


def test_functions_of_the_file_are_followed_with_their_arguments() -> None:
    text = WHOLE.replace(
        "def llama3_70b_cp4()",
        "def more(config: Trainer.Config, cp, steps=7):\n"
        "    config.parallelism.context_parallel_degree = cp * 2\n"
        "    config.training.steps += steps\n\n\n"
        "def llama3_70b_cp4()",
    ).replace("    config.parallelism.context_parallel_degree = 4\n", "    more(config, cp=2)\n")
    file = _configs(text)["llama3_70b_cp4"].file
    assert file.number("parallelism.context_parallel_degree") == 4
    assert file.number("training.steps") == 500
    assert "more" not in _configs(text)
    needy = WHOLE.replace("def llama3_70b()", "def llama3_70b(tp)").replace(
        "llama3_70b()\n", "llama3_70b(8)\n"
    )
    assert [*_configs(needy)] == ["llama3_70b_cp4"]


def test_functions_without_annotations_are_read_where_they_begin_with_torchtitans(tmp_path: Path) -> None:
    text = STAGES.replace(" -> Trainer.Config", "")
    assert _alarms(_checked(tmp_path, text)) == []
    assert "PS601" in _alarms(_checked(tmp_path, text.replace("config.compile =", "config.compil =")))


def test_an_annotation_may_name_less_than_the_class(tmp_path: Path) -> None:
    text = STAGES.replace("deepseek_v3_16b()", "mine()").replace("config.compile =", "config.encoder =")
    assert _alarms(_checked(tmp_path, text)) == []


def test_folders_are_searched_for_torchtitans_functions_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WHOLE)
    (tmp_path / "other.py").write_text("def config():\n    return dict(torchtitan=1)\n")
    (tmp_path / "use.py").write_text("from torchtitan.trainer import Trainer\n\nTrainer(1).train()\n")
    (tmp_path / "broken.py").write_text("def torchtitan(:\n")
    assert [path.name for path in config_files(tmp_path)] == ["mine.py"]
    with pytest.raises(ConfigError, match="no function that returns a configuration"):
        check_file(tmp_path / "use.py", Given())


def test_broken_python_is_one_finding_with_its_place(tmp_path: Path) -> None:
    (found,) = _checked(
        tmp_path, WHOLE.replace("debug=DebugConfig(seed=7),", "debug=DebugConfig(seed=7")
    ).findings
    assert found.code == "PS600"
    assert found.line
    (found,) = _checked(tmp_path, "x = 1\n  y = 2\n").findings
    assert (found.code, found.line) == ("PS600", 2)


@pytest.mark.parametrize(
    "deep",
    [
        "x = " + "(" * 400 + ")" * 400,
        "x = " + "-" * 3000 + "1",
        "x = " + "+".join(["1"] * 3000),
        "x = [1] * 10 ** 9",
        "x = 7 ** 7 ** 7 ** 7",
        "x = 'a' * 10 ** 9",
        "def f(): return f()",
        "x = " + "+".join(["1"] * 700),
        "".join(f"def f{n}(): f{n - 1}(); return f{n - 1}()\n" for n in range(1, 60)),
        "x\0 = 1",
    ],
    ids=[
        "brackets",
        "signs",
        "sums",
        "short sums",
        "lists",
        "powers",
        "texts",
        "recursion",
        "doubling",
        "null",
    ],
)
def test_deep_files_end(tmp_path: Path, deep: str) -> None:
    checked = _checked(tmp_path, f"{WHOLE}\n{deep}\n")
    assert set(_alarms(checked)) <= {"PS600"}


def test_hardware_tells_whether_the_job_fits(tmp_path: Path) -> None:
    whole = WHOLE[: WHOLE.index("def llama3_70b_cp4")]
    assert _alarms(_checked(tmp_path, whole, Given(hardware=load_hardware("dgx-h100:8")))) == []
    small = whole.replace("shard_degree=8", "shard_degree=1")
    one = _checked(tmp_path, small, Given(hardware=load_hardware("dgx-h100")))
    assert "PS101" in _alarms(one)
    assert "num_tokens_per_microbatch" in _line(one, "PS101")
    odd = _checked(tmp_path, whole, Given(hardware=load_hardware("dgx-h100")))
    assert _line(odd, "PS200").startswith("parallelism=")


def test_devices_fill_the_shard_degree(tmp_path: Path) -> None:
    text = WHOLE.replace(", data_parallel_shard_degree=8", "").replace("=256 * LENGTH", "=24 * LENGTH")
    assert "PS554" not in _alarms(_checked(tmp_path, text))
    assert "PS554" in _alarms(_checked(tmp_path, text, Given(hardware=load_hardware("dgx-h100:8"))))


def _case(model: str, on: str, **fields: Any) -> Case:
    hardware, source = load_hardware(on), load_source(model)
    assert source is not None
    fields = {"shard": Shard.PARAMETERS, "precision": Precision.BF16_MIXED, "micro_batch_size": 1} | fields
    plan = Plan(**{"gradient_accumulation_steps": 1, "backend": Backend.NCCL} | fields)
    workload = Workload(
        global_batch_size=plan.global_batch_size,
        sequence_length=4096,
        optimizer=Optimizer.ADAMW,
        precision=plan.precision,
    )
    stack = load_stack("torch")
    spec = source.at(4096, plan.precision, stack.kernels)
    return assess(Facts(model=spec, hardware=hardware, workload=workload, stack=stack), plan)


PLANS: dict[str, dict[str, Any]] = {
    "fsdp": {"mesh": Mesh(dp_shard=8), "recompute": Recompute.SELECTIVE},
    "ddp": {"mesh": Mesh(dp_replicate=8), "shard": Shard.NONE, "recompute": Recompute.FULL},
    "hsdp, bf16, offload": {
        "mesh": Mesh(dp_replicate=2, dp_shard=4),
        "precision": Precision.BF16,
        "offload": Offload.PARAMETERS,
    },
    "tp, compiled": {
        "mesh": Mesh(dp_shard=2, tp=4),
        "sequence_parallel": True,
        "loss_parallel": True,
        "async_tp": True,
        "compile": Compile.BLOCK,
    },
    "cp": {"mesh": Mesh(dp_shard=2, cp=4), "gradient_accumulation_steps": 4},
    "pp": {
        "mesh": Mesh(pp=2, dp_shard=2, tp=2),
        "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
        "gradient_accumulation_steps": 8,
        "sequence_parallel": True,
        "reshard_after_forward": False,
    },
    "interleaved": {
        "mesh": Mesh(pp=4, dp_shard=2),
        "pp_schedule": PipelineSchedule.INTERLEAVED,
        "virtual_stages": 2,
        "gradient_accumulation_steps": 16,
        "reshard_after_forward": False,
    },
}


def _emitted(case: Case) -> str:
    (text,) = [file.text for file in EMITTERS[Target.TORCHTITAN](case) if file.path.endswith(".py")]
    return text


@pytest.mark.parametrize("fields", PLANS.values(), ids=PLANS)
def test_what_is_emitted_for_torchtitan_is_found_right(tmp_path: Path, fields: dict[str, Any]) -> None:
    case = _case("llama-3.1-8b", "dgx-h100", **fields)
    given = Given(hardware=load_hardware("dgx-h100"))
    text = _emitted(case)
    # rules about plans say what they say of the plan itself
    found = findings_of(case, columns_of(case))
    of_plan = {each.code for each in found if each.severity is not Severity.INFO}
    assert set(_alarms(_checked(tmp_path, text))) <= of_plan
    assert set(_alarms(_checked(tmp_path, text, given))) <= of_plan


def test_experts_are_emitted_and_found_right(tmp_path: Path) -> None:
    fields = {"mesh": Mesh(dp_shard=8, ep=8), "recompute": Recompute.SELECTIVE}
    text = _emitted(_case("deepseek-v2-lite", "dgx-h100", **fields))
    assert _alarms(_checked(tmp_path, text)) == []
    graphs = text.replace("disable_cuda_graphs = True", "disable_cuda_graphs = False")
    assert _alarms(_checked(tmp_path, graphs)) == ["PS555"]


def test_a_plan_comes_back_as_it_was_emitted() -> None:
    for name in ("fsdp", "tp, compiled", "pp"):
        case = _case("llama-3.1-8b", "dgx-h100", **PLANS[name])
        config = _configs(_emitted(case))["planned"]
        file = replace(config.file, devices=8)
        said = {key: value for key, value in python_fields(file).items() if value is not None}
        stated = {key: getattr(case.plan, key) for key in said}
        # that torchtitan frees them by default, and how it divides logits, is its own
        for own in ("loss_parallel", "cp_method"):
            said.pop(own, None), stated.pop(own, None)
        assert said == stated
        assert python_workload(file)["global_batch_size"] == case.workload.global_batch_size
        assert python_workload(file)["sequence_length"] == 4096


def test_nothing_is_imported(tmp_path: Path) -> None:
    _checked(tmp_path, f"{WHOLE}\nraise SystemExit(3)\n")
    assert "torchtitan" not in sys.modules
