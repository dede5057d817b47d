"""mpirun's script, by running it: under Open MPI, and with a stand-in for what has Hydra."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from emit.test_launchers import environment, finished, small_case, start, written

from parastrat.check import check_file
from parastrat.check.known import Given
from parastrat.emit import EMITTERS, Target, emitted
from parastrat.plan import Backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case
    from parastrat.hardware import Device

#: says whose it is, and notes what it is asked for
MPIRUN = """\
#!/usr/bin/env bash
if [[ $1 == --version ]]; then echo "{whose}"; exit; fi
printf '%s\\n' "$@" "$MASTER_ADDR" "$SOME_VALUE" > asked
"""

#: mpirun stands there only where Open MPI is installed, as it is with the extra dev on Linux
OPEN_MPI = Path(sys.executable).with_name("mpirun")

TRAINING = """\
import os, sys
import torch
from torch import nn
import torch.distributed as dist
import parastrat
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x)
torch.manual_seed(0)
model = parastrat.auto_parallelize(Net())
rank = dist.get_rank()
model(torch.full((2, 8), 1.0 + rank)).sum().backward()
gradient = next(model.parameters()).grad[0, 0].item()
line = (rank, dist.get_world_size(), gradient, sys.argv[1:], os.environ["PARASTRAT_PLAN"],
        os.environ["SOME_VALUE"])
open(f"rank{rank}", "w").write(repr(line))
"""


def ddp_case(case_of: Callable[..., Case], cpu: Device) -> Case:
    """The plan of a module with as many parameters as the script's, over two processes."""
    from parastrat.plan import Mesh, Shard
    from parastrat.workload import Precision

    case = small_case(case_of, cpu, 1)
    plan = replace(case.plan, mesh=Mesh(dp_replicate=2), shard=Shard.NONE, precision=Precision.FP32)
    model = type(case.model)(**{**vars(case.model), "ref": "train.py:Net", "parameters": 72, "layers": 0})
    workload = replace(case.workload, precision=Precision.FP32, sequence_length=None, global_batch_size=2)
    return replace(case, plan=plan, model=model, workload=workload)


@pytest.mark.slow
@pytest.mark.skipif(not OPEN_MPI.exists(), reason="Open MPI is not installed")
def test_it_trains_under_open_mpi(case_of: Callable[..., Case], cpu_device: Device, tmp_path: Path) -> None:
    import ast

    folder = tmp_path / "a folder"
    written(folder, emitted(Target.MPIRUN, ddp_case(case_of, cpu_device)))
    (folder / "train.py").write_text(TRAINING)
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    code, errors = finished(start(folder, "bash", "mpirun.sh", "train.py", "--lr", "1 e", **allowed))
    assert code == 0, errors
    for rank in (0, 1):
        line = ast.literal_eval((folder / f"rank{rank}").read_text())
        # the mean of 2 x 1 and 2 x 2
        assert line == (rank, 2, 3.0, ["--lr", "1 e"], str(folder / "plan.toml"), "a 'b' $c")
    code, _ = finished(start(folder, "bash", "mpirun.sh", "nowhere.py", **allowed))
    assert code != 0


def asked(folder: Path, whose: str, *arguments: str, **env: str) -> tuple[int, str, list[str]]:
    """Run the script with a stand-in: its exit code, what it says, and what is asked of mpirun."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "mpirun").write_text(MPIRUN.format(whose=whose))
    (tools / "mpirun").chmod(0o755)
    (folder / "asked").unlink(missing_ok=True)
    path = f"{tools}:{environment()['PATH']}"
    code, errors = finished(start(folder, "bash", "mpirun.sh", *arguments, **{"PATH": path, **env}))
    found = folder / "asked"
    return code, errors, found.read_text().splitlines() if found.exists() else []


@pytest.fixture
def two_nodes(case_of: Callable[..., Case], cpu_device: Device, tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    written(folder, emitted(Target.MPIRUN, small_case(case_of, cpu_device, 2)))
    return folder


def test_nodes_of_open_mpi(two_nodes: Path) -> None:
    code, errors, found = asked(
        two_nodes, "mpirun (Open MPI) 5.0.11", "train.py", "a b", HOSTS="n1,n2", MASTER_PORT="7"
    )
    assert code == 0, errors
    passed = ["-x", "PARASTRAT_PLAN", "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x", "SOME_VALUE"]
    passed += ["-x", "OMP_NUM_THREADS"]
    python = shutil.which("python", path=environment()["PATH"])
    assert found == [
        "-n", "2", "--host", "n1:1,n2:1", "--map-by", "slot", "--bind-to", "none",
        *passed, python, "train.py", "a b", "n1", "a 'b' $c",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "whose", ["HYDRA build details:", "Intel(R) MPI Library for Linux* OS, Version 2021.11"]
)
def test_nodes_of_hydra(two_nodes: Path, whose: str) -> None:
    code, errors, found = asked(two_nodes, whose, "train.py", HOSTS="n1,n2")
    assert code == 0, errors
    assert found[:7] == ["-genvall", "-n", "2", "-ppn", "1", "-hosts", "n1,n2"]


def test_it_says_what_is_missing(two_nodes: Path) -> None:
    whose = "mpirun (Open MPI) 5.0.11"
    code, errors, found = asked(two_nodes, whose, "train.py")
    assert (code, "HOSTS is not set" in errors, found) == (2, True, [])
    code, errors, found = asked(two_nodes, whose, "train.py", HOSTS="n1")
    assert (code, "the plan is for 2 nodes, HOSTS names 1" in errors, found) == (2, True, [])
    code, errors, found = asked(two_nodes, whose, HOSTS="n1,n2")
    assert (code, "usage: HOSTS=node,node mpirun.sh YOUR_SCRIPT.py" in errors, found) == (2, True, [])
    code, errors, found = asked(two_nodes, "LAM/MPI", "train.py", HOSTS="n1,n2")
    assert (code, "neither Open MPI's nor one with Hydra" in errors, found) == (2, True, [])
    code, errors, found = asked(two_nodes, whose, "train.py", HOSTS="n1,n2", PYTHON="no-such")
    assert (code, "there is no no-such on the PATH" in errors, found) == (2, True, [])


@pytest.mark.skipif(not OPEN_MPI.exists(), reason="Open MPI is not installed")
@pytest.mark.parametrize(
    ("hosts", "are_enough"), [("localhost", False), ("localhost:2", True), ("localhost,localhost", True)]
)
def test_open_mpi_counts_slots_as_the_rule_does(hosts: str, are_enough: bool, tmp_path: Path) -> None:
    options = f"-np 2 --allow-run-as-root --host {hosts}"
    script = tmp_path / "job.sh"
    script.write_text(f"mpirun {options} python train.py\n")
    codes = [found.code for found in check_file(script, Given()).findings]
    code, errors = finished(start(tmp_path, str(OPEN_MPI), *options.split(), "hostname"))
    assert ((codes == []), (code == 0)) == (are_enough, are_enough)
    assert ("not enough slots" in errors) is not are_enough


def test_it_starts_the_backend_mpi(case_of: Callable[..., Case], cpu_device: Device) -> None:
    case = small_case(case_of, cpu_device, 1)
    (file,) = EMITTERS[Target.MPIRUN](replace(case, plan=replace(case.plan, backend=Backend.MPI)))
    bash = shutil.which("bash")
    assert bash
    subprocess.run([bash, "-n"], input=file.text, text=True, check=True)
