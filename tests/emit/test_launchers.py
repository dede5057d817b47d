"""The scripts of torchrun, Slurm and mpirun: as text, and by running the first two."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ports import free_port

from parastrat.check import check_file
from parastrat.check.known import Given
from parastrat.emit import EMITTERS, EmitError, Target, TextFile, emitted
from parastrat.hardware import DeviceType, Vendor
from parastrat.plan import Backend, Mesh, Shard

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case
    from parastrat.hardware import Device

LAUNCHERS = (Target.TORCHRUN, Target.SLURM, Target.MPIRUN)
#: that start torchrun's agents
AGENTS = (Target.TORCHRUN, Target.SLURM)

#: two agents on one machine, told apart by the name that Slurm gives their node
NODES = ("127.0.0.1", "localhost")
SRUN = """\
#!/usr/bin/env bash
echo "srun $*" >> "$SRUN_LOG"
while [[ $1 == --* ]]; do shift; done
for node in {nodes}; do
    SLURMD_NODENAME=$node "$@" & agents+=($!)
done
for agent in "${{agents[@]}}"; do wait "$agent" || failed=1; done
exit "${{failed:-0}}"
"""
SCONTROL = """\
#!/usr/bin/env bash
[[ "$*" == "show hostnames fake[1-2]" ]] && printf '%s\\n' {nodes}
"""

TRAINING = """\
import os, sys
if "fail" in sys.argv:
    raise SystemExit(3)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(total)
line = (dist.get_rank(), dist.get_world_size(), total.item(), sys.argv[1:], os.environ["PARASTRAT_PLAN"],
        os.environ["SOME_VALUE"], os.environ["OMP_NUM_THREADS"], os.environ["MASTER_ADDR"])
open(f"rank{dist.get_rank()}", "w").write(repr(line))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("name", "nodes", "ranks", "devices"),
    [("one-node", 1, 8, 8), ("two-nodes", 2, 8, 8), ("part-of-a-node", 1, 2, 8)],
)
@pytest.mark.parametrize("target", LAUNCHERS)
def test_goldens(
    target: Target,
    name: str,
    nodes: int,
    ranks: int,
    devices: int,
    *,
    case_of: Callable[..., Case],
    golden: Callable[[str, str], None],
) -> None:
    case = case_of(nodes=nodes, ranks=ranks)
    case = replace(case, hardware=replace(case.hardware, devices_per_node=devices))
    (file,) = EMITTERS[target](case)
    golden(f"{name}.{file.path}", file.text)


@pytest.mark.parametrize("target", LAUNCHERS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_check_finds_nothing_in_them(
    target: Target, nodes: int, case_of: Callable[..., Case], tmp_path: Path
) -> None:
    (file,) = EMITTERS[target](case_of(nodes=nodes))
    script = tmp_path / file.path
    script.write_text(file.text)
    assert check_file(script, Given()).findings == ()


@pytest.mark.parametrize("target", LAUNCHERS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_bash_accepts_them_and_values_reach_it_unharmed(
    target: Target, nodes: int, case_of: Callable[..., Case], tmp_path: Path
) -> None:
    harmful = "a'b\"; touch $HOME/`x` #\n\\"
    case = case_of(nodes=nodes)
    case = replace(
        case,
        launch=replace(case.launch, env={"SOME_VALUE": harmful}),
        hardware=replace(case.hardware, name="x\nrm -r /"),
    )
    (file,) = EMITTERS[target](case)
    assert not any(line.startswith("rm") for line in file.text.splitlines())
    script = tmp_path / file.path
    script.write_text(file.text)
    bash = shutil.which("bash")
    assert bash
    subprocess.run([bash, "-n", str(script)], check=True)
    text = file.text[file.text.index("export SOME_VALUE") :]
    # what stands behind the variables
    setting = re.split(r"\n# the ranks' store|\n\nhosts=|\n\n# inside of", text)[0]
    done = subprocess.run(
        [bash, "-c", f'{setting}\nprintf %s "$SOME_VALUE"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == harmful


def test_slurm_asks_for_no_gpus_on_hosts_without(case_of: Callable[..., Case], cpu_device: Device) -> None:
    (file,) = EMITTERS[Target.SLURM](case_of(nodes=2, device=cpu_device))
    assert "--gpus" not in file.text
    assert "#SBATCH --exclusive" in file.text


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.AMD])
def test_slurm_asks_for_gpus_by_that_name(case_of: Callable[..., Case], vendor: Vendor) -> None:
    case = case_of(nodes=2)
    device = replace(case.hardware.device, vendor=vendor)
    (file,) = EMITTERS[Target.SLURM](replace(case, hardware=replace(case.hardware, device=device)))
    assert "#SBATCH --gpus-per-node=8\n" in file.text
    assert "hpu" not in file.text


def test_slurm_tells_how_sites_name_gaudis(case_of: Callable[..., Case]) -> None:
    case = case_of(nodes=2)
    device = replace(case.hardware.device, vendor=Vendor.INTEL, type=DeviceType.HPU)
    (file,) = EMITTERS[Target.SLURM](replace(case, hardware=replace(case.hardware, device=device)))
    assert "instead of the next line:\n##SBATCH --gres=hpu:8\n#SBATCH --gpus-per-node=8\n" in file.text


def test_slurm_asks_for_the_gpus_that_ranks_share(case_of: Callable[..., Case]) -> None:
    case = case_of(nodes=2, ranks=8)
    (file,) = EMITTERS[Target.SLURM](
        replace(case, hardware=replace(case.hardware, accelerators_per_node=4))
    )
    assert "#SBATCH --gpus-per-node=4\n" in file.text
    assert "--nproc-per-node 8 " in file.text


@pytest.mark.parametrize("target", AGENTS)
def test_agents_do_not_start_mpi(target: Target, case_of: Callable[..., Case]) -> None:
    case = case_of(nodes=2)
    with pytest.raises(EmitError, match="backend is mpi") as refused:
        EMITTERS[target](replace(case, plan=replace(case.plan, backend=Backend.MPI)))
    assert "--to mpirun" in refused.value.hint


@pytest.mark.parametrize("target", LAUNCHERS)
def test_refuses_what_nothing_can_start(target: Target, case_of: Callable[..., Case]) -> None:
    case = case_of(nodes=2)
    with pytest.raises(EmitError, match=r"plan is for 16 ranks .* starts 1 x 8 = 8"):
        EMITTERS[target](replace(case, launch=replace(case.launch, nodes=1)))
    with pytest.raises(EmitError, match=r"'A B' .* is no name"):
        EMITTERS[target](replace(case, launch=replace(case.launch, env={"A B": "1"})))


@pytest.mark.parametrize("target", LAUNCHERS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mesh": Mesh(dp_replicate=4, cp=2), "shard": Shard.NONE},
            r"does not apply cp 2 without sharded parameters yet .*PS290",
        ),
        (
            {"mesh": Mesh(pp=2, tp=4, ep=2), "shard": Shard.NONE},
            r"does not apply ep 2 over a part of tp 4 without data ranks yet .*PS290",
        ),
        ({"shard": Shard.OPTIMIZER}, "shards the optimizer alone .ZeRO-1. over 8 ranks .PS291"),
    ],
)
def test_refuses_what_the_started_script_would_refuse(
    target: Target, fields: dict[str, Any], message: str, case_of: Callable[..., Case]
) -> None:
    with pytest.raises(EmitError, match=message) as refused:
        EMITTERS[target](case_of(**fields))
    with pytest.raises(EmitError) as said:
        EMITTERS[Target.PYTHON](case_of(**fields))
    assert refused.value.hint == said.value.hint


@pytest.mark.parametrize("target", LAUNCHERS)
def test_the_plan_comes_with_the_scripts(target: Target, case_of: Callable[..., Case]) -> None:
    files = emitted(target, case_of(), stored_ref="../m.py:build")
    assert 'ref = "../m.py:build"' in next(file.text for file in files if file.path == "plan.toml")


def written(folder: Path, files: tuple[TextFile, ...]) -> None:
    folder.mkdir()
    for file in files:
        (folder / file.path).write_text(file.text)
    (folder / "train.py").write_text(TRAINING)


def environment(**more: str) -> dict[str, str]:
    keep = {"HOME": os.environ.get("HOME", "/"), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**keep, "PATH": path, **more}


def start(folder: Path, *command: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=folder, env=environment(**env), stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def small_case(case_of: Callable[..., Case], cpu: Device, nodes: int) -> Case:
    case = case_of(nodes=nodes, ranks=1 if nodes > 1 else 2, device=cpu)
    return replace(
        case, launch=replace(case.launch, env={"SOME_VALUE": "a 'b' $c", "OMP_NUM_THREADS": "1"})
    )


def expected(rank: int, plan: Path, arguments: list[str]) -> tuple[Any, ...]:
    return (rank, 2, 3.0, arguments, str(plan), "a 'b' $c", "1")


def ranks_of(folder: Path) -> list[tuple[Any, ...]]:
    import ast

    return [ast.literal_eval((folder / f"rank{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_run_sh_starts_all_ranks_of_one_node(
    case_of: Callable[..., Case], cpu_device: Device, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder"
    written(folder, emitted(Target.TORCHRUN, small_case(case_of, cpu_device, 1)))
    code, errors = finished(start(folder, "bash", "run.sh", "train.py", "--lr", "1 e"))
    assert code == 0, errors
    for rank, line in enumerate(ranks_of(folder)):
        assert line[:-1] == expected(rank, folder / "plan.toml", ["--lr", "1 e"])
    code, errors = finished(start(folder, "bash", "run.sh", "train.py", "fail"))
    assert code != 0


@pytest.mark.slow
def test_run_sh_on_two_nodes_makes_one_world(
    case_of: Callable[..., Case], cpu_device: Device, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    written(folder, emitted(Target.TORCHRUN, small_case(case_of, cpu_device, 2)))
    env = {"HEAD": "127.0.0.1", "RDZV_PORT": str(free_port()), "RDZV_ID": "7"}
    agents = [start(folder, "bash", "run.sh", "train.py", "x", **env) for _ in range(2)]
    for agent in agents:
        code, errors = finished(agent)
        assert code == 0, errors
    for rank, line in enumerate(ranks_of(folder)):
        assert line[:-1] == expected(rank, folder / "plan.toml", ["x"])


def test_run_sh_says_what_is_missing(
    case_of: Callable[..., Case], cpu_device: Device, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    written(folder, emitted(Target.TORCHRUN, small_case(case_of, cpu_device, 2)))
    code, errors = finished(start(folder, "bash", "run.sh", "train.py"))
    assert (code, "HEAD is not set" in errors) == (2, True)
    code, errors = finished(start(folder, "bash", "run.sh", HEAD="h"))
    assert (code, "usage: HEAD=node run.sh YOUR_SCRIPT.py" in errors) == (2, True)
    (folder / "plan.toml").unlink()
    code, errors = finished(start(folder, "bash", "run.sh", "train.py", HEAD="h"))
    assert (code, f"there is no {folder}/plan.toml" in errors) == (2, True)


def slurm_environment(folder: Path, nodes: int = 2) -> dict[str, str]:
    """Stand-ins for srun and scontrol, and what Slurm sets in a job."""
    tools = folder / "bin"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tools / name).write_text(text.format(nodes=" ".join(NODES)))
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}{os.pathsep}{environment()['PATH']}",
        "SRUN_LOG": str(folder / "srun.log"),
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_NODELIST": "fake[1-2]",
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_CPUS_ON_NODE": "2",
    }


def batch(folder: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """Run the script as Slurm does: a copy of it in another folder."""
    spool = folder / "spool"
    spool.mkdir(exist_ok=True)
    (spool / "slurm_script").write_text((folder / "job.sbatch").read_text())
    return finished(start(folder, "bash", str(spool / "slurm_script"), *arguments, **env))


@pytest.mark.slow
def test_the_batch_script_starts_one_agent_a_node(
    case_of: Callable[..., Case], cpu_device: Device, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    written(folder, emitted(Target.SLURM, small_case(case_of, cpu_device, 2)))
    env = slurm_environment(folder)
    code, errors = batch(folder, "train.py", "--name", "a b", **env)
    assert code == 0, errors
    lines = ranks_of(folder)
    for rank, line in enumerate(lines):
        assert line[:-1] == expected(rank, folder / "plan.toml", ["--name", "a b"])
    # the ranks meet where the first agent says that it is: at its own node's name
    assert len({line[-1] for line in lines}) == 1
    assert lines[0][-1] in NODES
    log = (folder / "srun.log").read_text().splitlines()
    assert len(log) == 1
    assert log[0].startswith("srun --kill-on-bad-exit=1 --cpus-per-task=2 bash -c exec torchrun")
    port = env["SLURM_JOB_ID"]  # itself one of the ports that jobs meet at
    assert (
        f"--rdzv-id {env['SLURM_JOB_ID']} --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} " in log[0]
    )
    code, _ = batch(folder, "train.py", "fail", **env)
    assert code != 0


def test_the_batch_script_says_what_is_missing(
    case_of: Callable[..., Case], cpu_device: Device, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    written(folder, emitted(Target.SLURM, small_case(case_of, cpu_device, 2)))
    env = slurm_environment(folder, nodes=3)
    code, errors = batch(folder, "train.py", **env)
    assert (code, "the plan is for 2 nodes, the allocation has 3" in errors) == (2, True)
    code, errors = batch(folder, **env)
    assert (code, "usage: sbatch job.sbatch YOUR_SCRIPT.py" in errors) == (2, True)
    code, errors = batch(folder, "train.py", **env | {"PARASTRAT_PLAN": "/nowhere.toml"})
    assert (code, "there is no /nowhere.toml" in errors) == (2, True)
    assert not (folder / "srun.log").exists()
