"""``run_plan``: real processes on this machine, and what is refused before any is started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from ports import free_port
from runtime.models import plan

from parastrat.errors import LaunchError, MismatchError, ParastratError, PlanFileError, UsageError
from parastrat.launch import Launch
from parastrat.parse import Parsed
from parastrat.plan import Backend
from parastrat.runtime.launching.allocation import Nodes, StatedNodes, nodes_of
from parastrat.runtime.launching.job_logs import Watch, first_to_fail, last_error, last_words, stderr_log
from parastrat.runtime.launching.launch import run_plan

#: torch 2.11 may wait for 30 s of it for ranks that it stops, and cannot be told otherwise
DEADLINE_S = 90

ALL_REDUCE = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(total)
print("sum", total.item(), sys.argv[1:], os.path.basename(os.environ["PARASTRAT_PLAN"]), flush=True)
print("note of rank", dist.get_rank(), file=sys.stderr, flush=True)
dist.barrier()
dist.destroy_process_group()
"""

#: writes its process id and waits
SLEEPING = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent has to see to it
path = Path(sys.argv[1], "pid" + os.environ["RANK"])
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
time.sleep(600)
"""

DRIVER = """
import json, sys
from pathlib import Path
from parastrat.errors import ParastratError
from parastrat.launch import Launch
from parastrat.parse import Parsed
from parastrat.plan import Backend, Mesh, Plan
from parastrat.workload import Precision
from parastrat.runtime.launching.launch import run_plan

folder, nodes, ranks, keywords, *arguments = sys.argv[1:]
nodes, ranks = int(nodes), int(ranks)
made = Plan(mesh=Mesh(dp_replicate=nodes * ranks), micro_batch_size=1, gradient_accumulation_steps=1,
            precision=Precision.FP32, backend=Backend.GLOO)
launch = Launch(nodes=nodes, ranks_per_node=ranks, backend="cpu:gloo", device="cpu", env={"STATED": "yes"})
try:
    code = run_plan(Parsed(plan=made, launch=launch), Path(folder) / "script.py", arguments,
                    plan_path=Path(folder) / "plan.toml", **json.loads(keywords))
except ParastratError as error:
    print(f"MESSAGE {error.message}\\nHINT {error.hint}", file=sys.stderr)
    code = error.exit_code
sys.exit(code)
"""


def parsed(nodes: int = 1, ranks: int = 2, **fields: object) -> Parsed:
    launch = Launch(nodes=nodes, ranks_per_node=ranks, backend="cpu:gloo", device="cpu")
    return Parsed(plan=plan(**({"dp_replicate": nodes * ranks} | fields)), launch=launch)


def started(
    folder: Path, script: str, *arguments: str, nodes: int = 1, ranks: int = 2, **keywords: object
) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(script)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "OMP_NUM_THREADS" and not name.startswith("SLURM")
    }
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            DRIVER,
            str(folder),
            str(nodes),
            str(ranks),
            json.dumps(keywords),
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**inherited, "TMPDIR": str(folder)},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def pids(folder: Path) -> list[int]:
    """The process ids of the ranks of SLEEPING, once both run."""
    paths = folder / "pid0", folder / "pid1"
    deadline = time.monotonic() + DEADLINE_S
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(path.read_text()) for path in paths]


def all_gone(processes: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_two_ranks_reduce_and_rank_zero_is_shown_once(tmp_path: Path) -> None:
    code, out, err = ended(started(tmp_path, ALL_REDUCE, "--steps", "3"))
    assert (code, out) == (0, "sum 3.0 ['--steps', '3'] plan.toml\n"), err
    assert err.count("note of rank 0") == 1
    assert "note of rank 1" not in err
    assert not list(tmp_path.glob("parastrat-run-*"))  # nothing is left of a good run


@pytest.mark.slow
def test_ranks_are_given_the_plans_environment(tmp_path: Path) -> None:
    script = """
import os, sys
names = ["STATED", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "OMP_NUM_THREADS", "WORLD_SIZE"]
print([os.environ[name] for name in names], sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
"""
    code, out, err = ended(started(tmp_path, script))
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert (code, out) == (0, f"['yes', '1', '{threads}', '2'] True\n"), err


@pytest.mark.slow
def test_the_first_failing_ranks_traceback_is_shown(tmp_path: Path) -> None:
    script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("no such shard: 17")
dist.all_reduce(torch.ones(1))  # fails too, as its peer is gone
"""
    code, _, err = ended(started(tmp_path, script))
    assert code == 1
    assert 'raise ValueError("no such shard: 17")' in err
    assert err.count("Traceback (most recent call last)") == 1
    assert "MESSAGE rank 1 of 2 failed" in err
    assert "(exit code 1): ValueError: no such shard: 17" in err
    assert "worker.py" not in err  # the traceback is the script's own


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "hint"),
    [
        (
            "raise RuntimeError('aten.lerp_.Scalar got mixed torch.Tensor and DTensor')",
            "term.full_tensor()",
        ),
        ("os.kill(os.getpid(), signal.SIGBUS)", "docker --shm-size=16g"),
    ],
)
def test_what_is_known_of_a_failure_is_said(tmp_path: Path, last: str, hint: str) -> None:
    code, _, err = ended(started(tmp_path, f"import os, signal\n{last}\n", ranks=1))
    assert code == 1
    said = err[err.index("HINT") :]
    assert hint in said
    assert "its output, and the other ranks', is in" in said


@pytest.mark.slow
def test_rank_zeros_traceback_is_shown_once(tmp_path: Path) -> None:
    code, _, err = ended(
        started(tmp_path, "import sys\nprint('a note', file=sys.stderr)\n1 / 0\n", ranks=1)
    )
    assert code == 1
    assert err.startswith("a note\n")
    assert err.count("Traceback (most recent call last)") == 1
    assert "MESSAGE rank 0 of 1 failed (exit code 1): ZeroDivisionError: division by zero" in err


@pytest.mark.slow
def test_what_rank_zero_writes_after_a_caught_exception_is_shown(tmp_path: Path) -> None:
    script = """
import sys, time, traceback
sys.stderr.write("10 %")  # a progress bar: no line ends
sys.stderr.flush()
time.sleep(0.5)
sys.stderr.write("\\r20 %\\n")
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
print("went on", file=sys.stderr)
"""
    code, _, err = ended(started(tmp_path, script, ranks=1))
    assert code == 0
    # universal newlines make a line end of the return
    assert err.startswith("10 %\n20 %\n")
    assert err.count("ZeroDivisionError") == 1
    assert err.count("went on") == 1


@pytest.mark.slow
def test_a_rank_that_will_not_be_stopped_is_not_blamed(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(4)
    os.kill(os.getpid(), signal.SIGKILL)  # as the agent does after 30 s
time.sleep(1)
sys.exit("disk full")
"""
    code, _, err = ended(started(tmp_path, script))
    assert code == 1
    assert "MESSAGE rank 1 of 2 failed" in err
    assert "disk full" in err
    assert "memory runs out" not in err


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_others_end(tmp_path: Path) -> None:
    process = started(tmp_path, SLEEPING, str(tmp_path))
    ranks = pids(tmp_path)
    os.kill(ranks[1], signal.SIGKILL)
    code, _, err = ended(process)
    assert code == 1
    assert "MESSAGE rank 1 of 2 failed" in err
    assert "(killed by SIGKILL)" in err
    assert "memory runs out" in err
    assert all_gone(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_the_agent(tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path, SLEEPING, str(tmp_path))
    ranks = pids(tmp_path)
    process.send_signal(number)
    code, _, err = ended(process)
    assert all_gone(ranks)
    if number is signal.SIGINT:
        assert code == 1
        assert "MESSAGE stopped by SIGINT" in err
    else:
        assert code == -signal.SIGKILL


@pytest.mark.slow
def test_ranks_are_restarted(tmp_path: Path) -> None:
    script = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, flush=True)
if attempt == 0 and dist.get_rank() == 1:
    os._exit(3)
dist.barrier()
dist.destroy_process_group()
"""
    code, out, err = ended(started(tmp_path, script, max_restarts=1))
    assert (code, out) == (0, "attempt 0\nattempt 1\n"), err


@pytest.mark.slow
def test_two_agents_are_two_nodes(tmp_path: Path) -> None:
    port = free_port()
    agents = [
        started(
            tmp_path,
            ALL_REDUCE,
            nodes=2,
            ranks=1,
            nnodes=2,
            node_rank=number,
            rdzv_endpoint=f"127.0.0.1:{port}",
        )
        for number in range(2)
    ]
    results = [ended(agent) for agent in agents]
    assert [code for code, _, _ in results] == [0, 0], results
    # on one of the two screens, and there once
    assert sorted(out for _, out, _ in results) == ["", "sum 3.0 [] plan.toml\n"]


def refused(given: Parsed, folder: Path) -> ParastratError:
    script = folder / "train.py"
    script.write_text("")
    with pytest.raises(ParastratError) as caught:
        run_plan(given, script, [], plan_path=folder / "plan.toml")
    return caught.value


def test_a_missing_script(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no script .*nowhere\.py"):
        run_plan(parsed(), tmp_path / "nowhere.py", [], plan_path=tmp_path / "plan.toml")


@pytest.mark.parametrize("part", ["plan", "launch"])
def test_a_file_without_a_part(tmp_path: Path, part: str) -> None:
    whole = parsed()
    given = Parsed(
        plan=None if part == "plan" else whole.plan, launch=None if part == "launch" else whole.launch
    )
    error = refused(given, tmp_path)
    assert isinstance(error, PlanFileError)
    assert f"has no [{part}]" in error.message


def test_mpi_is_refused_with_what_is_left(tmp_path: Path) -> None:
    error = refused(parsed(backend=Backend.MPI), tmp_path)
    assert isinstance(error, LaunchError)
    assert "built without it" in error.message
    for option in ("(1) enable IP over InfiniBand", "(2) use Gloo over", "(3) build torch"):
        assert option in error.hint


def test_a_plan_for_another_world(tmp_path: Path) -> None:
    error = refused(parsed(dp_replicate=1, dp_shard=16), tmp_path)
    assert isinstance(error, MismatchError)
    assert error.exit_code == 2
    assert error.message == "plan is for 16 ranks (dp_shard 16), 2 were started"
    assert "--replan" in error.hint


def test_a_gpu_plan_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    launch = Launch(nodes=1, ranks_per_node=8, backend="cpu:gloo,cuda:nccl", device="cuda")
    error = refused(Parsed(plan=plan(dp_shard=8, backend=Backend.NCCL), launch=launch), tmp_path)
    assert isinstance(error, MismatchError)
    assert "plan is for 8 ranks (dp_shard 8), 8 on a node; this one has 0 cuda devices" in error.message


def nodes(
    count: int, stated: StatedNodes | None = None, environment: Mapping[str, str] | None = None
) -> Nodes:
    whole = parsed(nodes=count)
    assert whole.plan is not None
    assert whole.launch is not None
    return nodes_of(whole.plan, whole.launch, stated or StatedNodes(), environment or {}, Path("plan.toml"))


def test_one_node_meets_nobody() -> None:
    assert nodes(1) == Nodes(count=1, endpoint="localhost:0")
    assert nodes(1, StatedNodes(count=1)) == Nodes(count=1, endpoint="localhost:0")


def test_stated_nodes() -> None:
    stated = StatedNodes(count=2, rank=1, endpoint="node0:29500")
    assert nodes(2, stated) == Nodes(count=2, endpoint="node0:29500", job="parastrat", rank=1)


SLURM = {
    "SLURM_NNODES": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[007-009,12]",
    "SLURM_JOB_ID": "31234",
    "SLURM_STEP_ID": "2",
    "SLURM_NODEID": "3",
}


def test_the_nodes_of_a_slurm_step() -> None:
    assert nodes(4, None, SLURM) == Nodes(count=4, endpoint="gpu007:21234", job="slurm-31234-2", rank=3)


#: what Kubeflow sets in the pods of a TrainJob
PODS = {
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "3",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29501",
}


def test_the_nodes_of_pods() -> None:
    found = Nodes(count=4, endpoint="job-node-0-0.job:29501", job="parastrat", rank=3)
    assert nodes(4, None, PODS) == found
    assert nodes(4, None, {**SLURM, **PODS}) == found
    assert nodes(1, None, {"PET_NNODES": "1"}) == Nodes(count=1, endpoint="localhost:0")


def test_a_plan_for_one_node_is_not_run_by_each_of_several_pods() -> None:
    with pytest.raises(MismatchError, match=r"plan is for 2 ranks .*, 8 were started"):
        nodes(1, None, PODS)


@pytest.mark.parametrize(
    ("stated", "environment", "kind", "message", "hint"),
    [
        (StatedNodes(), {"PET_NNODES": "4"}, UsageError, "does not say where the nodes meet", "--nnodes 4"),
        (StatedNodes(), {**PODS, "PET_NODE_RANK": ""}, UsageError, "or which this is", "--node-rank N"),
        (StatedNodes(), {**PODS, "PET_NNODES": "2:4"}, UsageError, "one number of nodes", "4 nodes"),
        (StatedNodes(), {**PODS, "PET_MASTER_PORT": "no"}, UsageError, "is not HOST:PORT", "node0:29500"),
        (StatedNodes(), {}, UsageError, "in no allocation", "emit plan.toml --to torchrun"),
        (StatedNodes(), {**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, UsageError, "started on one", "srun"),
        (StatedNodes(), {"SLURM_NNODES": "4"}, UsageError, "started on one", "--ntasks-per-node=1"),
        (StatedNodes(), {**SLURM, "SLURM_NNODES": "2"}, MismatchError, "4 were started", "--replan"),
        (StatedNodes(count=2), {}, MismatchError, "8 ranks (dp_replicate 8), 4 were started", "--replan"),
        (StatedNodes(count=4), {}, UsageError, "wait for each other forever", "HOST:PORT"),
        (StatedNodes(count=4, rank=4, endpoint="a:1"), {}, UsageError, "--node-rank 4 of 4", "0 to 3"),
        (StatedNodes(endpoint="node0"), {}, UsageError, "node0 is not HOST:PORT", "node0:29500"),
        (StatedNodes(endpoint="node0:99999"), {}, UsageError, "is not HOST:PORT", "node0:29500"),
    ],
)
def test_nodes_that_cannot_meet(
    stated: StatedNodes,
    environment: Mapping[str, str],
    kind: type[ParastratError],
    message: str,
    hint: str,
) -> None:
    with pytest.raises(kind) as caught:
        nodes(4, stated, environment)
    assert message in caught.value.message
    assert hint in caught.value.hint


def written(folder: Path, rank: int, text: str, age_s: float) -> None:
    log = stderr_log(folder, rank, 0)
    log.parent.mkdir(parents=True)
    log.write_text(text)
    moment = time.time() - age_s
    os.utime(log, (moment, moment))


def test_the_first_to_fail_went_silent_first(tmp_path: Path) -> None:
    written(tmp_path, 0, "Connection closed by peer\n", age_s=1)
    written(tmp_path, 1, "out of memory\n", age_s=2)
    written(tmp_path, 2, "", age_s=9)
    assert first_to_fail({0: 1, 1: -6, 2: -15}, Watch(tmp_path), 0) == 1
    assert first_to_fail({0: 1, 2: -15}, Watch(tmp_path), 0) == 0


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3411",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or so",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    ],
)
def test_a_rank_whose_peer_is_gone_did_not_begin_it(tmp_path: Path, error: str) -> None:
    head = "Traceback (most recent call last):\n"
    written(tmp_path, 0, f"{head}{error}\n", age_s=9)
    # what ends last may have written last
    written(tmp_path, 1, f"{head}ValueError: no such shard: 17\n", age_s=1)
    assert first_to_fail({0: 1, 1: 1}, Watch(tmp_path), 0) == 1


def test_a_rank_killed_after_another_had_gone_did_not_begin_it(tmp_path: Path) -> None:
    for rank, age_s in enumerate((1, 9)):
        written(tmp_path, rank, "", age_s=age_s)
    folders = [stderr_log(tmp_path, rank, 0).parent for rank in (0, 1)]
    failed = {0: 1, 1: -signal.SIGKILL}
    assert first_to_fail(failed, Watch(tmp_path, gone={folders[0]: 4, folders[1]: 50}, looks=51), 0) == 0
    assert first_to_fail(failed, Watch(tmp_path, gone={folders[1]: 4, folders[0]: 5}, looks=51), 0) == 1


def test_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_text("warning\n" * 30 + "the end\n")
    assert last_words(log).splitlines() == ["warning"] * 14 + ["the end"]
    assert last_error(last_words(log)) == ""
    lines = ["Traceback (most recent call last):", "  File", "KeyError: 'a'"]
    log.write_text("warning\n" + "\n".join(f"[rank3]: {line}" for line in lines))
    assert last_words(log).splitlines() == lines
    assert last_error(last_words(log)) == "KeyError: 'a'"
    handled = "During handling of the above exception, another exception occurred:"
    caught = [lines[0], "  File", "OSError: caught long before"]
    ignored = ["Exception ignored in: <function f>", lines[0], "  File", "TypeError: at exit"]
    log.write_text("\n".join([*caught, "step 7", *lines, "", handled, "", *caught, *ignored]))
    assert last_words(log).splitlines() == [*lines, "", handled, "", *caught, *ignored]
    assert last_error(last_words(log)) == "OSError: caught long before"
    log.write_text("\n".join([lines[0], *["  File"] * 100, lines[-1]]))
    assert last_words(log).splitlines()[:3] == [lines[0], "  ... 42 lines", "  File"]
    assert last_error(last_words(log)) == "KeyError: 'a'"
