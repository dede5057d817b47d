"""Configurations of torchtitan: mistakes of their form, of the job, and whole jobs that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.bad_configs import Bad
from check.bad_torchtitan import BAD_TORCHTITAN, EXPERTS, TORCHTITAN

from parastrat.check import Checked, check_file, config_files, stated_model
from parastrat.check.known import Given
from parastrat.check.whole_jobs import stated_source
from parastrat.config_file import ConfigFile, ConfigFormat
from parastrat.finding import Severity
from parastrat.profiles import load_hardware
from parastrat.profiles.files import read_format
from parastrat.rules.torchtitan_models import BASELINES
from parastrat.sources.presets import TransformerSource


def _checked(folder: Path, text: str, given: Given | None = None) -> Checked:
    path = folder / "train.toml"
    path.write_text(text)
    return check_file(path, given or Given())


def _alarms(checked: Checked) -> list[str]:
    return [found.code for found in checked.findings if found.severity is not Severity.INFO]


@pytest.mark.parametrize("bad", BAD_TORCHTITAN, ids=lambda bad: f"{bad.code}-{bad.what}")
def test_every_mistake_is_found_where_it_is(tmp_path: Path, bad: Bad) -> None:
    checked = _checked(tmp_path, bad.text)
    assert bad.code in _alarms(checked)
    for found in checked.findings:
        assert found.line is None or 1 <= found.line <= len(checked.lines) + 1


@pytest.mark.parametrize("text", [TORCHTITAN, EXPERTS], ids=["dense", "experts"])
def test_good_files_have_no_alarms(tmp_path: Path, text: str) -> None:
    checked = _checked(tmp_path, text)
    assert checked.format is ConfigFormat.TORCHTITAN
    assert "PS689" in [found.code for found in checked.findings]
    assert _alarms(checked) == []


def test_hardware_tells_whether_the_job_fits(tmp_path: Path) -> None:
    whole = Given(hardware=load_hardware("dgx-h100:8"))
    assert _alarms(_checked(tmp_path, TORCHTITAN, whole)) == []
    one = _checked(tmp_path, TORCHTITAN, Given(hardware=load_hardware("dgx-h100")))
    (fit,) = [found for found in one.findings if found.code == "PS101"]
    assert "h100-sxm5" in fit.message
    assert "local_batch_size" in one.lines[(fit.line or 0) - 1]


@pytest.mark.parametrize(
    ("model", "local", "length", "tp", "on"),
    [
        ('"llama3"\nflavor = "70B"', 8, 8192, 8, "dgx-a100:8"),
        ('"llama3"\nflavor = "405B"\nconverters = ["float8"]', 2, 8192, 8, "dgx-h100:16"),
        ('"llama4"\nflavor = "17bx16e"', 8, 8192, 8, "dgx-h100:8"),
        ('"qwen3"\nflavor = "32B"', 2, 4096, 1, "grand-teton-h100-96gb"),
    ],
    ids=["70B", "405B", "scout", "32B"],
)
def test_what_torchtitan_gives_for_some_gpus_is_not_said_to_need_more(
    tmp_path: Path, model: str, local: int, length: int, tp: int, on: str
) -> None:
    # sizes and GPUs by train_configs/*.toml of https://github.com/pytorch/torchtitan @73a0e69
    text = f"""\
[model]
name = {model}

[training]
local_batch_size = {local}
seq_len = {length}

[parallelism]
tensor_parallel_degree = {tp}

[activation_checkpoint]
mode = "full"

[compile]
enable = {"true" if "float8" in model else "false"}
"""
    checked = _checked(tmp_path, text, Given(hardware=load_hardware(on)))
    assert "PS101" not in checked.open
    assert "PS101" not in _alarms(checked)
    half = _checked(tmp_path, text.replace("_size = ", "_size = 4"), Given(hardware=load_hardware(on)))
    assert "PS101" in _alarms(half)


def test_numbers_that_a_device_lacks_are_told_at_the_converters(tmp_path: Path) -> None:
    checked = _checked(tmp_path, TORCHTITAN, Given(hardware=load_hardware("dgx-a100:8")))
    (found,) = [each for each in checked.findings if each.code == "PS411"]
    assert checked.lines[(found.line or 0) - 1] == 'converters = ["float8"]'


def test_every_second_block_is_no_policy_so_that_nothing_is_said_of_memory(tmp_path: Path) -> None:
    text = TORCHTITAN.replace('mode = "full"', 'mode = "selective"')
    checked = _checked(tmp_path, text, Given(hardware=load_hardware("dgx-h100:2")))
    assert _alarms(checked) == []
    assert "PS101" in checked.open


def test_devices_fill_the_shard_degree(tmp_path: Path) -> None:
    text = TORCHTITAN.replace("steps = 1000", "steps = 1000\nglobal_batch_size = 24")
    assert _alarms(_checked(tmp_path, text)) == []
    found = _checked(tmp_path, text, Given(hardware=load_hardware("dgx-h100:8"))).findings
    assert "PS691" in [each.code for each in found]


def test_degrees_make_the_devices_that_are_told(tmp_path: Path) -> None:
    odd = Given(hardware=load_hardware("dgx-h100:3"))
    assert "PS200" in _alarms(_checked(tmp_path, EXPERTS, odd))
    text = TORCHTITAN.replace("tensor_parallel_degree = 8", "tensor_parallel_degree = 16")
    found = _checked(tmp_path, text, odd).findings
    assert "tp 16 is 16 ranks, no divisor of the 24 devices" in [each.message for each in found]


def test_keys_of_earlier_versions_say_the_same(tmp_path: Path) -> None:
    devices = Given(hardware=load_hardware("dgx-h100"))
    (now,) = [each for each in _checked(tmp_path, TORCHTITAN, devices).findings if each.code == "PS101"]
    earlier = TORCHTITAN.replace("local_batch_size", "batch_size").replace(
        "tensor_parallel_degree = 8", "tensor_parallel_degree = 1"
    )
    earlier = earlier.replace("steps = 1000", "steps = 1000\ntensor_parallel_degree = 8")
    earlier = earlier.replace("tensor_parallel_degree = 1\nenable", "enable")
    checked = _checked(tmp_path, earlier, devices)
    (then,) = [each for each in checked.findings if each.code == "PS101"]
    assert then.message == now.message
    assert [each.code for each in checked.findings].count("PS608") == 2
    other = _checked(tmp_path, earlier.replace("steps =", "data_parallel_degree = 2\nsteps ="), devices)
    assert "PS101" in other.open


def test_a_module_of_the_users_own_may_add_keys(tmp_path: Path) -> None:
    text = TORCHTITAN + "\n[mine]\nknob = 1\n"
    assert _alarms(_checked(tmp_path, text)) == ["PS601"]
    extended = text.replace('description = "70B on eight nodes"', 'custom_config_module = "mine.config"')
    assert _alarms(_checked(tmp_path, extended)) == []


def test_folders_are_searched_for_torchtitans_files_alone(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(EXPERTS)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n\n[tool.ruff]\nline-length = 99\n')
    (tmp_path / "other.toml").write_text('[model]\nname = "x"\n\n[training]\nsteps = 3\n')
    assert config_files(tmp_path) == (tmp_path / "train.toml",)


def test_a_toml_file_of_nobodys_is_read_as_a_plan(tmp_path: Path) -> None:
    checked = _checked(tmp_path, '[owner]\nname = "x"\n')
    assert checked.format is ConfigFormat.PLAN
    assert "owner is not a part of plan files" in [found.message for found in checked.findings]


def test_experts_and_attention_are_torchtitans_own() -> None:
    for name, flavor in (("llama4", "17bx16e"), ("gpt_oss", "20b")):
        table = {"model": {"name": name, "flavor": flavor}}
        source = stated_source(ConfigFile(format=ConfigFormat.TORCHTITAN, table=table))
        assert isinstance(source, TransformerSource)
        assert source.architecture.experts is not None
        assert not source.architecture.experts.every_token
        assert source.architecture.scores is None


def test_models_have_presets_alike_those_that_plans_are_emitted_for() -> None:
    models = read_format("torchtitan")["models"]
    for preset in models.values():
        assert stated_model(preset).parameters > 0
    for preset, baseline in BASELINES.items():
        found = models[f"{baseline.family} {baseline.flavor}"]
        assert stated_model(found).parameters == stated_model(preset).parameters
