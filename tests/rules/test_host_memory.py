from __future__ import annotations

from builders import case, codes, cpu_hosts

from parastrat.assess import columns_of
from parastrat.plan import Offload, Shard
from parastrat.rules import findings_of
from parastrat.units import GIB

SHARDED = {"shard": Shard.PARAMETERS, "dp_shard": 8}


def test_host_memory_is_too_small() -> None:
    # eight processes of 2 GiB each
    assert "PS106" in codes(**SHARDED, host_memory_bytes=16 * GIB - 1)
    assert "PS106" not in codes(**SHARDED, host_memory_bytes=16 * GIB)


def test_what_is_offloaded_is_kept_on_the_host() -> None:
    roomy = {**SHARDED, "host_memory_bytes": 16 * GIB}
    assert "PS106" not in codes(**roomy)
    offloaded = case(**roomy, offload=Offload.PARAMETERS)
    (finding,) = (f for f in findings_of(offloaded, columns_of(offloaded)) if f.code == "PS106")
    assert "with the parameters offloaded; it has 16 GiB" in finding.message
    assert finding.fix == "offload less, or use more hosts"


def test_a_host_of_unknown_memory_is_not_judged() -> None:
    assert not {"PS106", "PS107"} & codes(**SHARDED, host_memory_bytes=None, offload=Offload.PARAMETERS)


def test_the_memory_of_cpu_hosts_is_judged_as_their_devices() -> None:
    assert not {"PS106", "PS107"} & codes(**cpu_hosts(host_memory_bytes=1))


def test_whole_models_exceed_the_host() -> None:
    made = case(**SHARDED)
    needed = 16 * GIB + 8 * 4 * made.model.parameters
    assert "PS107" in codes(**SHARDED, host_memory_bytes=needed - 1)
    assert "PS107" not in codes(**SHARDED, host_memory_bytes=needed)
