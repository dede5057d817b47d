"""Groups that DTensors are gathered over have one Gloo thread: two corrupt the heap. Others keep two."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from runtime.models import Gpt, plan
from runtime.ranks import on_ranks
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor

import parastrat
from parastrat.runtime.communication.flow import ranks_of
from parastrat.runtime.communication.gloo import group_apart, one_gloo_thread
from parastrat.runtime.wrapping import wrapping_of

_CPU = torch.device("cpu")
#: many collectives of two kinds, ending beside each other
SIDE_BY_SIDE = """
import torch
import torch.distributed as dist
from parastrat.runtime.communication.gloo import one_gloo_thread

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
{made}
one = torch.ones(1)
for _ in range(400):
    works = []
    for _ in range(250):
        works.append({collective})
        works.append(group.allreduce([one]))
    for work in works:
        work.wait()
print("well")
"""


def _threads(group: dist.ProcessGroup) -> int:
    threads: int = group._get_backend(_CPU).options._threads
    return threads


def _wrapped(axes: dict[str, int], *, begun: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    if begun:
        dist.init_process_group("gloo")
    before = distributed_c10d.ProcessGroupGloo
    model = parastrat.auto_parallelize(Gpt(), plan=plan(gradient_accumulation_steps=1, **axes))
    mesh = wrapping_of(model).mesh
    assert mesh.whole is not None
    groups = [group for axis, group in zip(axes, mesh.whole.get_all_groups(), strict=True) if axis != "pp"]
    divided = [each for each in model.parameters() if isinstance(each, DTensor)]
    met = [group for each in divided for group in each.device_mesh.get_all_groups()]
    exchanged = [] if mesh.tp is None else [ranks_of(mesh.tp).group]
    flat = [each.get_group() for each in (mesh.whole._get_root_mesh()._flatten_mapping or {}).values()]
    return {
        "world": _threads(dist.group.WORLD),
        "axes": {_threads(group) for group in groups},
        "divided": {_threads(group) for group in met},
        "flat": {_threads(group) for group in flat},
        "exchanged": {_threads(group) for group in exchanged},
        "ranks": {tuple(dist.get_process_group_ranks(group)) for group in exchanged},
        "mesh": {tuple(dist.get_process_group_ranks(mesh.tp.get_group()))} if mesh.tp else set(),
        "restored": distributed_c10d.ProcessGroupGloo is before,
    }


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True], ids=["", "in the script's group"])
@pytest.mark.parametrize(
    ("ranks", "axes"),
    drawn(
        [
            pytest.param(2, {"tp": 2}, id="tp"),
            pytest.param(2, {"dp_shard": 2}, id="fsdp2"),
            pytest.param(4, {"dp_shard": 2, "tp": 2}, id="fsdp2+tp"),
            pytest.param(4, {"dp_replicate": 2, "dp_shard": 2}, id="hsdp"),
        ],
        2,
    ),
)
def test_dtensors_are_gathered_by_one_thread(ranks: int, axes: dict[str, int], begun: bool) -> None:
    for found in on_ranks(ranks, partial(_wrapped, begun=begun), axes):
        assert found["axes"] == found["divided"] == {1}
        assert found["flat"] <= {1}
        assert found["exchanged"] == ({2} if "tp" in axes else set())
        assert found["ranks"] == found["mesh"]
        assert found["restored"]


def test_ddp_keeps_the_threads_that_overlap_its_buckets() -> None:
    for found in on_ranks(2, _ddp):
        assert found == 2


def _ddp() -> int:
    model = parastrat.auto_parallelize(Gpt(), plan=plan(gradient_accumulation_steps=1, dp_replicate=2))
    assert wrapping_of(model).mesh.data_group is dist.group.WORLD
    return _threads(dist.group.WORLD)


@pytest.mark.parametrize(("interface", "made"), [("lo", True), ("no-such-interface", False)])
def test_interfaces_are_those_that_the_user_named(
    interface: str, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    with one_gloo_thread():
        begin = partial(
            distributed_c10d.ProcessGroupGloo, dist.HashStore(), 0, 1, timeout=timedelta(seconds=9)
        )
    if made:
        assert begin().options._threads == 1
    else:
        with pytest.raises(RuntimeError, match=interface):
            begin()


@pytest.mark.parametrize(
    ("made", "collective"),
    drawn(
        [
            pytest.param(
                "with one_gloo_thread():\n    group = dist.new_group()",
                "group.allgather_into_tensor_coalesced([torch.empty(1)], [one])",
                id="gathers of DTensors",
            ),
            pytest.param(
                "group = dist.new_group()",
                "dist.all_gather_into_tensor(torch.empty(1), one, group=group, async_op=True)",
                id="gathers of tensors",
            ),
            pytest.param(
                "group = dist.new_group()",
                "dist.reduce_scatter_tensor(torch.empty(1), one, group=group, async_op=True)",
                id="reduce-scatters of tensors",
            ),
        ],
        1,
    ),
)
def test_collectives_that_end_together_leave_the_heap_whole(made: str, collective: str) -> None:
    script = SIDE_BY_SIDE.format(made=made, collective=collective)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout.strip()) == (0, "well"), run.stderr


def _meeting() -> int:
    """Return what ranks send each other in a group of theirs, of which one was in another group before."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        dist.new_group([0], backend="gloo", use_local_synchronization=True)
    met = 0
    for _ in range(2):
        group = group_apart([0, 1], timedelta(seconds=20))
        one = torch.ones(1)
        dist.all_reduce(one, group=group)
        met += int(one)
    return met


def test_ranks_with_different_groups_behind_them_meet() -> None:
    """torch's own name for such a group counts those that a rank has, and ranks waited ten minutes."""
    assert on_ranks(2, _meeting) == [4, 4]
