"""Launches by accelerate and deepspeed, alone and with the files that they name."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.bad_configs import Bad
from check.bad_directives import DIRECTIVES, GOOD_DIRECTIVES
from check.bad_launches import ALONE, BESIDE, DEEPSPEED, GOOD_LAUNCHES, TOGETHER, WITH_FILE
from check.bad_megatron import GOOD_MEGATRONS, MEGATRONS, OVERLAPPED
from check.bad_programs import GOOD_PROGRAMS, PROGRAMS
from check.bad_ranks import GOOD_LIGHTNING, GOOD_RANKS, LIGHTNING, LIGHTNINGS, RANKS
from check.bad_signals import GOOD_SIGNALS, SIGNALS

from parastrat.check import check_file, config_files
from parastrat.check.known import Given
from parastrat.errors import ConfigError
from parastrat.finding import Finding
from parastrat.profiles import load_hardware


def found_in(
    folder: Path, text: str, beside: dict[str, str], suffix: str = ".sbatch"
) -> tuple[Finding, ...]:
    """Return the findings of a script, with files beside it."""
    for name, content in beside.items():
        (folder / name).write_text(content)
    path = folder / f"job{suffix}"
    path.write_text(text)
    found = check_file(path, Given()).findings
    assert all(each.line is None or 1 <= each.line <= len(text.splitlines()) for each in found)
    return found


@pytest.mark.parametrize(
    "bad",
    [*ALONE, *PROGRAMS, *MEGATRONS, *SIGNALS, *DIRECTIVES, *RANKS],
    ids=lambda bad: f"{bad.code}-{bad.what}",
)
def test_mistakes_of_a_line_are_found(tmp_path: Path, bad: Bad) -> None:
    assert bad.code in [each.code for each in found_in(tmp_path, bad.text, {}, bad.suffix)]


@pytest.mark.parametrize("bad", TOGETHER, ids=lambda bad: f"{bad.code}-{bad.what}")
def test_mistakes_that_a_file_shows_are_found_with_it_alone(tmp_path: Path, bad: Bad) -> None:
    assert bad.code not in [each.code for each in found_in(tmp_path, bad.text, {})]
    assert bad.code in [each.code for each in found_in(tmp_path, bad.text, BESIDE)]


@pytest.mark.parametrize("bad", LIGHTNING, ids=lambda bad: f"{bad.code}-{bad.what}")
def test_mistakes_that_a_program_shows_are_found_with_it_alone(tmp_path: Path, bad: Bad) -> None:
    assert bad.code not in [each.code for each in found_in(tmp_path, bad.text, {})]
    assert [bad.code] == [each.code for each in found_in(tmp_path, bad.text, LIGHTNINGS)]


@pytest.mark.parametrize("text", GOOD_LIGHTNING)
def test_good_programs_of_lightning_have_no_findings(tmp_path: Path, text: str) -> None:
    assert found_in(tmp_path, text, LIGHTNINGS) == ()


@pytest.mark.parametrize(
    "text", [*GOOD_LAUNCHES, *GOOD_PROGRAMS, *GOOD_MEGATRONS, *GOOD_SIGNALS, *GOOD_DIRECTIVES, *GOOD_RANKS]
)
def test_good_launches_have_no_findings(tmp_path: Path, text: str) -> None:
    assert found_in(tmp_path, text, BESIDE, ".sh") == ()


def test_a_rule_of_the_file_is_told_in_the_lines_words(tmp_path: Path) -> None:
    text = WITH_FILE.replace("fsdp.yaml", "mesh.yaml --num_processes 8")
    (found,) = [each for each in found_in(tmp_path, text, BESIDE) if each.code == "PS610"]
    assert found.message == (
        "dp_replicate 2 x dp_shard 4 x tp 2 make 16 places for 8 processes (with mesh.yaml)"
    )
    assert found.fix == "make the sizes multiply to 8, or write --num_processes 16"
    assert text.splitlines()[(found.line or 0) - 1].startswith("srun")


def test_what_is_wrong_in_the_file_itself_is_told_there_alone(tmp_path: Path) -> None:
    broken = BESIDE["mesh.yaml"].replace("num_processes: 16", "num_processes: 8")
    text = WITH_FILE.replace("fsdp.yaml", "mesh.yaml")
    assert "PS610" not in [each.code for each in found_in(tmp_path, text, {"mesh.yaml": broken})]
    assert "PS610" in [each.code for each in check_file(tmp_path / "mesh.yaml", Given()).findings]


@pytest.mark.parametrize("content", ["", "a: [", "\x00", "services: {}\n", "num_processes: []\n", "[1]\n"])
def test_a_file_that_is_nothing_leaves_the_line_unknown(tmp_path: Path, content: str) -> None:
    text = WITH_FILE.replace(" --machine_rank $SLURM_NODEID", "")
    assert found_in(tmp_path, text, {"fsdp.yaml": content}) == ()


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("worker-0\n", "hosts, line 1: worker-0 is not HOST slots=NUMBER"),
        ("# ours\na slots=8\na slots=8\n", "hosts, line 3: a stands twice"),
        ("\n# nobody\n", "hosts, line 1: there is no host"),
    ],
)
def test_hosts_are_read_as_deepspeed_reads_them(tmp_path: Path, hosts: str, said: str) -> None:
    found = found_in(tmp_path, DEEPSPEED.replace("--num_nodes 2 ", ""), {"hosts": hosts})
    assert [(each.code, each.message) for each in found] == [("PS671", said)]


def test_folders_give_scripts_of_every_launcher(tmp_path: Path) -> None:
    for name, text in {"a.sh": DEEPSPEED, "b.sh": "accelerate launch t.py", "c.sh": "python t.py"}.items():
        (tmp_path / name).write_text(text)
    assert [path.name for path in config_files(tmp_path)] == ["a.sh", "b.sh"]
    with pytest.raises(ConfigError, match="starts no launcher"):
        check_file(tmp_path / "c.sh", Given())


def test_nodes_that_do_not_meet_are_told_without_their_batch(tmp_path: Path) -> None:
    text = "srun -N 2 torchrun --nproc-per-node 3 t.py --deepspeed_config ds.json\n"
    assert [each.code for each in found_in(tmp_path, text, BESIDE)] == ["PS650"]
    assert [each.code for each in found_in(tmp_path, text.removeprefix("srun -N 2 "), BESIDE)] == ["PS673"]


@pytest.mark.parametrize(
    ("hardware", "old", "new", "is_told"),
    [
        ("dgx-h100", "=1\n", "=32\n", True),
        ("dgx-h100", "=1\n", "=\n", True),
        ("dgx-h100", "=1\n", "=1\n", False),
        ("dgx-h100", "=1\n", "=$N\n", False),
        ("dgx-h100", "export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "", False),
        ("dgx-b200", "=1\n", "=32\n", False),
        ("cpu:2", "=1\n", "=32\n", False),
    ],
)
def test_connections_are_one_before_blackwell(
    tmp_path: Path, hardware: str, old: str, new: str, *, is_told: bool
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(OVERLAPPED.replace(old, new))
    found = [each.code for each in check_file(path, Given(hardware=load_hardware(hardware))).findings]
    assert ("PS539" in found) is is_told


@pytest.mark.parametrize(
    ("new", "is_told"),
    [
        ("tensor-model-parallel-size 1 --context-parallel-size 2", True),
        ("tensor-model-parallel-size 1", False),
        ("tensor-model-parallel-size 2 --overlap-moe-expert-parallel-comm", False),
        ("tensor-model-parallel-size 2 --use-megatron-fsdp", False),
    ],
)
def test_connections_matter_to_tp_and_cp_alone(tmp_path: Path, new: str, *, is_told: bool) -> None:
    path = tmp_path / "train.sh"
    path.write_text(OVERLAPPED.replace("=1\n", "=8\n").replace("tensor-model-parallel-size 2", new))
    given = Given(hardware=load_hardware("dgx-a100"))
    assert ("PS539" in [each.code for each in check_file(path, given).findings]) is is_told


def test_what_to_write_for_a_port_is_the_launchers(tmp_path: Path) -> None:
    line = "torchrun --master-port 29500 --nproc-per-node 4 a.py &\n"
    fixes = {
        other: [each.fix for each in found_in(tmp_path, line + other, {}, ".sh") if each.code == "PS535"]
        for other in ("deepspeed -i localhost:4 b.py\n", line)
    }
    assert list(fixes.values()) == [
        ["write --master_port 29501"],
        ["write torchrun --standalone for both, which take free ports"],
    ]


@pytest.mark.parametrize(
    ("hardware", "option", "is_told"),
    [
        ("dgx-1v", "--tf32 True", True),
        ("dgx-1v", "--tf32", True),
        ("dgx-1v", "--tf32 false", False),
        ("dgx-1v", "--tf32 $TF32", False),
        ("dgx-1v", "--bf17 True", False),
        ("dgx-a100", "--tf32 True", False),
        ("cpu:2", "--tf32 True", False),
    ],
)
def test_tf32_is_told_where_the_devices_have_none(
    tmp_path: Path, hardware: str, option: str, *, is_told: bool
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"torchrun --nproc-per-node 8 train.py {option}\n")
    found = [each.code for each in check_file(path, Given(hardware=load_hardware(hardware))).findings]
    assert ("PS540" in found) is is_told
