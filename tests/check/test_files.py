"""Files with one mistake each, and files without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from check.bad_configs import BAD, GOOD, LENIENT, Bad
from check.bad_plugins import GOOD_PLUGINS, PLUGINS

from parastrat.check import check_file, config_files
from parastrat.check.known import Given
from parastrat.errors import ConfigError
from parastrat.finding import Severity
from parastrat.profiles import load_hardware
from parastrat.report.check import check_text, github_text, summary_line
from parastrat.report.text import Paper


@pytest.mark.parametrize("bad", [*BAD, *PLUGINS], ids=lambda bad: f"{bad.code}-{bad.what}")
def test_every_mistake_is_found_where_it_is(tmp_path: Path, bad: Bad) -> None:
    path = tmp_path / f"config{bad.suffix}"
    path.write_text(bad.text)
    checked = check_file(path, Given())
    assert bad.code in [found.code for found in checked.findings]
    for found in checked.findings:
        assert found.path == str(path)
        assert found.line is None or 1 <= found.line <= len(checked.lines) + 1


@pytest.mark.parametrize("name", GOOD)
def test_good_files_have_no_findings(tmp_path: Path, name: str) -> None:
    good = GOOD[name]
    suffix = ".sbatch" if name == "SCRIPT" else ".yaml" if isinstance(good, str) else ".json"
    path = tmp_path / f"config{suffix}"
    path.write_text(good if isinstance(good, str) else json.dumps(good))
    assert check_file(path, Given()).findings == ()


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (suffix, text)
        for allowed in (LENIENT, GOOD_PLUGINS)
        for suffix, texts in allowed.items()
        for text in texts
    ],
)
def test_what_readers_allow_is_no_mistake(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"config{suffix}"
    path.write_text(text)
    findings = check_file(path, Given()).findings
    assert [each for each in findings if each.severity is not Severity.INFO] == []


def test_a_mistake_has_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{\n  "train_batch_size": 8,\n  "zero_optimization": {"stage": 7}\n}\n')
    (found,) = check_file(path, Given()).findings
    assert (found.code, found.line, found.column) == ("PS602", 3, 25)
    text = check_text([found], {str(path): path.read_text().splitlines()}, Paper())
    assert '    3 |   "zero_optimization": {"stage": 7}\n' + " " * 32 + "^" in text
    assert summary_line([found], 1) == "1 file checked: 1 error\n"


def test_hardware_makes_more_rules_answer(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8, "bf16": {"enabled": true}}')
    assert check_file(path, Given()).findings == ()
    given = Given(hardware=load_hardware("dgx-1v"))
    found = check_file(path, given).findings
    (precision,) = [each for each in found if "bf16" in each.message]
    assert precision.line == 1


def test_a_model_makes_more_rules_answer(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD["MESH"].replace("_tp_size: 2", "_tp_size: 24").replace(": 16", ": 192"))
    assert [each.code for each in check_file(path, Given()).findings] == []
    found = check_file(path, Given(model="llama-3.1-8b")).findings
    (heads,) = [each for each in found if each.severity is Severity.ERROR]
    assert "32" in heads.message
    assert path.read_text().splitlines()[(heads.line or 0) - 1].strip() == "parallelism_config_tp_size: 24"


def test_plan_files_are_judged_by_the_advisors_rules(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        """\
schema = "parastrat.plan/1"
[model]
ref = "llama-3.1-8b"
parameters = 8030261248
blocks = 32
[workload]
global_batch_size = 16
sequence_length = 8192
optimizer = "adamw"
precision = "bf16-mixed"
[plan]
pp = 1
dp_replicate = 8
dp_shard = 1
cp = 1
tp = 3
ep = 1
micro_batch_size = 2
gradient_accumulation_steps = 1
precision = "bf16-mixed"
backend = "nccl"
"""
    )
    found = {
        each.code: each for each in check_file(path, Given(hardware=load_hardware("dgx-h100:3"))).findings
    }
    assert found["PS101"].severity is Severity.ERROR  # a replica does not fit
    heads = found["PS210"] if "PS210" in found else found["PS201"]
    assert heads.line == path.read_text().splitlines().index("tp = 3") + 1


def test_keys_that_stand_twice_are_all_told_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        GOOD["FSDP2"].replace("  fsdp_version: 2\n", "  fsdp_version: 1\n  fsdp_version: 2\n")
        + "num_processes: 16\nmain_process_port: 29501\n"
    )
    found = check_file(path, Given()).findings
    lines = [path.read_text().splitlines()[(each.line or 0) - 1].strip() for each in found]
    assert [(each.code, line) for each, line in zip(found, lines, strict=True)] == [
        ("PS605", "fsdp_version: 2"),
        ("PS605", "num_processes: 16"),
        ("PS605", "main_process_port: 29501"),
    ]
    assert found[0].message == "fsdp_config.fsdp_version stands twice"


def test_the_last_of_two_values_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD["FSDP2"].replace("rank: 0", "rank: 0\nmachine_rank: 5"))
    assert [each.code for each in check_file(path, Given()).findings] == ["PS605", "PS619"]


@pytest.mark.parametrize("loads", ["true", "'True'", "'yes'"])
def test_text_for_a_switch_is_true_where_accelerate_asks_it(tmp_path: Path, loads: str) -> None:
    # accelerate launch stops at false alone; its plugin then sets what the text turned off
    path = tmp_path / "config.yaml"
    path.write_text(
        GOOD["FSDP1"].replace("loading: true", f"loading: {loads}").replace("states: true", "states: 'no'")
    )
    (found,) = check_file(path, Given()).findings
    assert (found.code, found.severity) == ("PS668", Severity.WARNING)
    assert "fsdp_sync_module_states in quotes counts as true: weights are sent" in found.message


def test_numbers_in_quotes_are_told_by_what_accelerate_does_with_them(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD["FSDP2"].replace("num_processes: 16", "num_processes: '16'"))
    (found,) = check_file(path, Given()).findings
    assert found.message == (
        "num_processes '16' is text, which accelerate divides by num_machines (2): "
        "it stops with a TypeError"
    )
    assert found.fix == "write num_processes: 16 without quotes"


def test_numbers_in_quotes_are_numbers_to_the_other_rules(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD["MESH"].replace("num_processes: 16", "num_processes: '8'"))
    assert [each.code for each in check_file(path, Given()).findings] == ["PS667", "PS610"]


def test_an_anchor_that_stands_twice_is_told_once(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("num_processes: &n 2\nnum_machines: &n 1\ndistributed_type: MULTI_GPU\n")
    (found,) = check_file(path, Given()).findings
    assert (found.code, found.line, found.column, len(recwarn)) == ("PS600", 2, 15, 0)


@pytest.mark.parametrize(("text", "place"), [("[plan]\ntp = x\n", (2, 6)), ("[plan]\ntp = [1,\n2", (3, 2))])
def test_a_plan_that_is_no_toml_is_told_where(tmp_path: Path, text: str, place: tuple[int, int]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('schema = "parastrat.plan/1"\n' + text)
    (found,) = check_file(path, Given()).findings
    assert (found.code, found.line, found.column) == ("PS600", place[0] + 1, place[1])
    assert found.message.startswith("not TOML: ")


def test_a_plan_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('schema = "parastrat.plan/1"\n[plan]\ntp = 0\n', encoding="utf-8-sig")
    assert {(each.code, each.line) for each in check_file(path, Given()).findings} >= {("PS603", 2)}


def test_line_breaks_of_dos_are_one_error_at_the_first(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_bytes(GOOD["SCRIPT"].replace("\n", "\r\n").replace("\r\n", "\n", 1).encode())
    (found,) = check_file(path, Given()).findings
    assert (found.code, found.line) == ("PS664", 2)


def test_what_the_batch_shell_starts_has_the_cores_of_all_tasks(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    asked = "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=8\n#SBATCH --cpus-per-task=4\n"
    launch = "torchrun --standalone --nproc-per-node 8 train.py\n"
    path.write_text(f"#!/bin/bash\n{asked}{launch}")
    assert "PS660" not in {each.code for each in check_file(path, Given()).findings}
    path.write_text(f"#!/bin/bash\n{asked}srun {launch}")
    assert "PS660" in {each.code for each in check_file(path, Given()).findings}


def test_counts_that_no_job_has_are_told_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    plan = 'micro_batch_size = 1\ngradient_accumulation_steps = 8\nprecision = "fp32"\nbackend = "gloo"\n'
    batch = 'global_batch_size = 8\noptimizer = "adamw"\nprecision = "fp32"\n'
    path.write_text(f"[workload]\n{batch}sequence_length = 8\nloss_chunks = 99999\n[plan]\n{plan}")
    found = [each for each in check_file(path, Given()).findings if "counted" in each.message]
    assert [(each.code, each.line) for each in found] == [("PS602", 6)]


def test_a_product_that_cannot_be_counted_is_told_at_its_largest_axis(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    plan = 'micro_batch_size = 1\ngradient_accumulation_steps = 8\nprecision = "fp32"\nbackend = "gloo"\n'
    path.write_text(f"[plan]\npp = 2\ntp = 99999999\ndp_shard = 1\n{plan}")
    found = [each for each in check_file(path, Given()).findings if "counted" in each.message]
    assert [(each.code, each.line) for each in found] == [("PS602", 3)]


def test_a_script_of_late_directives_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text("set -e\n#SBATCH --nodes=2\npython train.py\n")
    (found,) = check_file(path, Given()).findings
    assert (found.code, found.line) == ("PS665", 2)
    assert "line 2: #SBATCH --nodes=2" in found.message


def test_a_folder_gives_its_configurations(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "ds.json").write_text('{"train_batch_size": 8}')
    (tmp_path / "package.json").write_text('{"name": "other"}')
    (tmp_path / "notes.toml").write_text("a = 1\n")
    assert config_files(tmp_path) == (tmp_path / "deep" / "ds.json",)


#: of another trainer, which has some keys of accelerate's
OTHER_TRAINER = "fsdp_config: {}\n" + "".join(
    f"{key}: 1\n" for key in ("base_model", "datasets", "adapter", "lora_r", "epochs", "optimizer", "seed")
)


def test_a_folder_gives_what_is_broken_and_leaves_what_is_not_ours(tmp_path: Path) -> None:
    texts = {
        "broken.json": '{\n  "train_batch_size": 8,,\n}',
        "broken.yaml": "distributed_type: MULTI_GPU\nfsdp_config: {\n",
        "template.json": '{\n  "train_batch_size": BATCH_SIZE,\n}',
        "template.yaml": "num_processes: 8\ngpu_ids: {{ ids }}: 1\n",
        "other.yaml": "services: [\n",
        "trainer.yaml": OTHER_TRAINER + "num_processes: 8\n",
        "arguments.json": '{"bf16": true, "gradient_accumulation_steps": 4}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = config_files(tmp_path)
    assert [path.name for path in found] == ["broken.json", "broken.yaml"]
    for path in found:
        (problem,) = check_file(path, Given()).findings
        assert problem.code == "PS600"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("trainer.yaml", OTHER_TRAINER, "too few keys of a configuration"),
        ("config.ini", "[a]", "none of .toml"),
        ("other.json", '{"name": 1}', "too few keys of a configuration"),
        ("missing.yaml", None, "there is no"),
    ],
)
def test_what_is_no_configuration(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        [check_file(file, Given()) for file in config_files(path)]


def test_annotations_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a,b.yaml"
    path.write_text("distributed_type: MULTI_GPU\nnum_processes: 8\nnum_machine: 2\n")
    (line,) = github_text(check_file(path, Given()).findings).splitlines()
    assert line.startswith("::error file=")
    assert "a%2Cb.yaml,line=3,col=1,title=PS601::num_machine is no key of accelerate" in line


def test_what_to_change_in_files_of_others_names_no_flags_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 4\n"
    )
    (found,) = [
        each
        for each in check_file(path, Given(hardware=load_hardware("t4x4"))).findings
        if each.code == "PS410"
    ]
    assert found.fix == "use fp16-mixed"
