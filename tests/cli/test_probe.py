"""``parastrat probe``: text, JSON, and files that ``--on`` takes."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from cli.conftest import Typed

from parastrat.parse.hardware_file import hardware_toml, read_hardware_file
from parastrat.probe import hardware_of, read_machine

HOSTS = Path(__file__).parents[1] / "probe" / "hosts"
NAMES = sorted(path.name for path in HOSTS.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", NAMES)
def test_one_json_object(typed: Typed, name: str) -> None:
    done = typed("probe", "--root", HOSTS / name, "--json")
    expected = json.loads((HOSTS / name / "expected.json").read_text())
    assert (done.code, done.err) == (0, "")
    assert done.answer["schema"] == "parastrat.probe/1"
    found = done.answer["summary"]
    assert {key: found[key] for key in expected if key != "warn"} == {
        key: value for key, value in expected.items() if key != "warn"
    }
    assert done.answer["hardware"]["ref"].startswith("auto: ")
    assert done.answer["no_hardware"] is None


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_what_was_found(typed: Typed, tmp_path: Path, name: str) -> None:
    file = tmp_path / "host.toml"
    done = typed("probe", "--root", HOSTS / name, "-o", file)
    assert done.code == 0
    assert read_hardware_file(file) == hardware_of(read_machine(HOSTS / name))
    assert done.out.rstrip().endswith(f"parastrat recommend MODEL --on {file}:N")


@pytest.mark.parametrize("name", ["dgx-h100-ndr", "cpu-ib-ipoib", "amd-mi300x-kfd"])
def test_a_plan_for_two_hosts_of_a_file(typed: Typed, tmp_path: Path, name: str) -> None:
    file = tmp_path / "host.toml"
    typed("probe", "--root", HOSTS / name, "-o", file)
    done = typed("recommend", "gpt2", "--on", f"{file}:2", "--json")
    assert done.code == 0
    hardware = tomllib.loads(hardware_toml(hardware_of(read_machine(HOSTS / name))))["hardware"]
    assert done.answer["hardware"]["num_nodes"] == 2
    assert done.answer["hardware"]["device"]["name"] == hardware["device"]["name"]


@pytest.mark.parametrize("name", NAMES)
def test_text_fits_eighty_columns_without_colour(typed: Typed, name: str) -> None:
    done = typed("probe", "--root", HOSTS / name)
    assert (done.code, done.err) == (0, "")
    assert "\033" not in done.out
    longest = max(done.out.splitlines(), key=len)
    # an assignment stays whole, to be copied; the repository's own path may be long
    assert len(longest) <= 80 or "=mlx5" in longest or "--root" in longest


def test_text_explains_the_paths(typed: Typed) -> None:
    out = typed("probe", "--root", HOSTS / "dgx-a100-hdr").out
    assert "  GPU1  NV12  X     NV12" in out
    assert "  GPU2  SYS  PXB  SYS  SYS" in out
    assert "  N1    mlx5_2, mlx5_3" in out
    assert "PXB   through several PCIe switches" in out
    assert "PHB " not in out  # no pair goes that way


def test_text_says_what_would_make_it_known_and_what_harms(typed: Typed) -> None:
    out = typed("probe", "--root", HOSTS / "container-limited").out
    assert "cores       4 of 64, by a limit of its group" in out
    assert "- /dev/shm 64 MiB: NCCL" in out
    assert "-> ulimit -l unlimited" in out
    assert "- NUMA nodes\n    -> probe on the host itself" in out


def test_this_machine(typed: Typed) -> None:
    done = typed("probe", "--json")
    assert done.code == 0
    assert done.answer["summary"]["cpus_effective"] >= 1


def test_a_host_that_makes_no_hardware_is_still_told(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "nvml.json").write_text('{"gpus": [{"name": "NVIDIA Z9"}]}')
    done = typed("probe", "--root", tmp_path)
    assert done.code == 0
    assert "1 x NVIDIA Z9" in done.out
    assert "no profile describes this GPU: NVIDIA Z9" in done.out
    answer = typed("probe", "--root", tmp_path, "--json").answer
    assert answer["hardware"] is None
    assert answer["summary"]["gpus"] == 1
    refused = typed("probe", "--root", tmp_path, "-o", tmp_path / "host.toml")
    assert refused.code == 2
    assert "error: no profile describes this GPU: NVIDIA Z9" in refused.err
    assert not (tmp_path / "host.toml").exists()


@pytest.mark.parametrize("what", ["absent", "empty"])
def test_a_root_that_is_no_host(typed: Typed, tmp_path: Path, what: str) -> None:
    root = tmp_path / what
    if what == "empty":
        root.mkdir()
    done = typed("probe", "--root", root)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert "hint: " in done.err


def test_somebodys_file_is_not_overwritten(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "notes.toml"
    file.write_text("mine = true\n")
    root = HOSTS / "laptop-nothing"
    assert typed("probe", "--root", root, "-o", file).code == 2
    assert file.read_text() == "mine = true\n"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert typed("probe", "--root", root, "-o", pipe).code == 2
    assert pipe.is_fifo()
    fresh = tmp_path / "host.toml"
    for _ in range(2):  # one's own file is replaced
        assert typed("probe", "--root", root, "-o", fresh).code == 0
