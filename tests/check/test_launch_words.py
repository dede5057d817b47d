"""What is meant by words of launch scripts that their launchers do not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.bad_configs import SCRIPT

from parastrat.check import check_file
from parastrat.check.known import Given


def found_in(folder: Path, text: str) -> list[tuple[str, str, str]]:
    """Return the findings of a script: code, message and fix."""
    path = folder / "job.sbatch"
    path.write_text(text)
    return [(found.code, found.message, found.fix) for found in check_file(path, Given()).findings]


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [
        ("--nproc-per-node 8", "--nproc-per-node eight", "8"),
        ("--nproc-per-node 8", "--nproc-per-node GPUS", "gpu"),
        ("--nproc-per-node 8", "--nproc-per-node cuda", "gpu"),
        ("--nnodes 2", "--nnodes two", "2"),
        ("c10d", "cd10", "c10d"),
        ("c10d", "gloo", "c10d"),
        ("c10d", "etcd_v2", "etcd-v2"),
        ("--nnodes 2", "--nnodes 2 --start-method spwan", "spawn"),
    ],
)
def test_words_get_what_was_meant(tmp_path: Path, old: str, new: str, meant: str) -> None:
    wrong = new.removeprefix("--nnodes 2 ") if "--" in new else f"--rdzv-backend {new}"
    assert (("PS662", wrong, f"did you mean {meant}?")) in found_in(tmp_path, SCRIPT.replace(old, new))


@pytest.mark.parametrize("dashes", ["\N{EN DASH}", "\N{EM DASH}", "-\N{EN DASH}", "\N{EN DASH}\N{EN DASH}"])
def test_a_dash_of_a_text_processor_is_one_clear_message(tmp_path: Path, dashes: str) -> None:
    name = "em dash (\N{EM DASH})" if "\N{EM DASH}" in dashes else "en dash (\N{EN DASH})"
    ((code, message, fix),) = found_in(
        tmp_path, SCRIPT.replace("--nproc-per-node 8", f"{dashes}nproc-per-node 8")
    )
    assert code == "PS601"
    assert message == f"{dashes}nproc-per-node begins with {name}, not with two hyphens (--)"
    assert fix.startswith("write --nproc-per-node;")


def test_what_stands_behind_a_dash_is_read_as_it_was_meant(tmp_path: Path) -> None:
    found = found_in(tmp_path, SCRIPT.replace("--nproc-per-node 8", "\N{EN DASH}nproc-per-node=16"))
    assert [code for code, _, _ in found] == ["PS601", "PS657"]


def test_one_hyphen_and_powers_of_ten_get_what_is_to_be_written(tmp_path: Path) -> None:
    line = "accelerate launch --use_fsdp -num_processes=2 --fsdp_min_num_params 1e8 t.py\n"
    assert found_in(tmp_path, line) == [
        (
            "PS601",
            "-num_processes begins with one hyphen, not with two hyphens (--)",
            "write --num_processes",
        ),
        (
            "PS602",
            '--fsdp_min_num_params must be a whole number, not "1e8"',
            "write 100000000: it reads whole numbers alone",
        ),
    ]


@pytest.mark.parametrize(
    ("old", "new", "fix"),
    [
        ("--nodes=2", "--nodes=two", "did you mean 2?"),
        ("--cpus-per-task=64", "--cpus-per-task=64cores", "did you mean 64?"),
        ("--nodes=2", "--nodes=2 --time=36h", "did you mean 36:00:00?"),
        ("--nodes=2", "--nodes=2 --time=2days", "did you mean 2-0?"),
        ("--nodes=2", "--nodes=2 --time=90min", "did you mean 90?"),
        ("--nodes=2", "--nodes=2 --time=soon", "write minutes, hours:minutes:seconds, or days-hours"),
        ("--nodes=2", "--nodes=2 --mem=64GiB", "did you mean 64G?"),
        ("--nodes=2", "--nodes=2 --mem=512mb_", "write whole megabytes, or so many K, M, G or T"),
        ("--nodes=2", "-N=2", "write -N 2"),
        ("--nodes=2", "--nodes=2 --exlusive", "did you mean --exclusive?"),
        ("--nodes=2", "--nodes=2 --workdir=/x", "write --chdir"),
        (
            "--nodes=2",
            "--nodes=2 --gpu-cmode=x",
            "remove it, unless a plugin of the cluster's Slurm adds it",
        ),
    ],
)
def test_options_of_slurm_get_what_was_meant(tmp_path: Path, old: str, new: str, fix: str) -> None:
    assert fix in [mend for _, _, mend in found_in(tmp_path, SCRIPT.replace(old, new))]


@pytest.mark.parametrize("option", ["-u", "--unbuffered"])
def test_an_unknown_option_in_front_of_a_script_is_one_finding(tmp_path: Path, option: str) -> None:
    line = f"torchrun --nproc-per-node 8 {option} train.py --seed 1 --steps 8\n"
    assert [(code, message) for code, message, _ in found_in(tmp_path, line)] == [
        ("PS601", f"{option} is no option of torchrun")
    ]
