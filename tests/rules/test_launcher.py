from __future__ import annotations

from builders import codes, cpu_hosts


def test_launch_is_not_the_mesh() -> None:
    assert "PS501" in codes(dp_replicate=8, ranks_per_node=4)
    assert "PS501" in codes(dp_replicate=8, nodes=2)
    assert "PS501" not in codes(dp_replicate=16)


def test_more_ranks_than_devices() -> None:
    assert "PS502" in codes(dp_replicate=8, ranks_per_node=9)
    assert "PS502" in codes(dp_replicate=8, accelerators_per_node=4)
    assert "PS502" not in codes(dp_replicate=8)
    assert "PS502" not in codes(**cpu_hosts(ranks_per_node=4))


def test_threads_are_unset() -> None:
    assert "PS503" in codes(dp_replicate=8, env={})
    assert "PS503" not in codes(dp_replicate=8, env={"OMP_NUM_THREADS": "12"})
    assert "PS503" not in codes(env={})


def test_threads_exceed_cores() -> None:
    assert "PS504" in codes(dp_replicate=8, cores=96, env={"OMP_NUM_THREADS": "13"})
    assert "PS504" not in codes(dp_replicate=8, cores=96, env={"OMP_NUM_THREADS": "12"})
    assert "PS504" not in codes(dp_replicate=8, cores=None, env={"OMP_NUM_THREADS": "13"})
    assert "PS504" not in codes(dp_replicate=8, cores=96, env={"OMP_NUM_THREADS": "many"})


def test_threads_are_no_number() -> None:
    assert "PS505" in codes(env={"OMP_NUM_THREADS": "many"})
    assert "PS505" in codes(env={"OMP_NUM_THREADS": "0"})
    assert "PS505" not in codes(env={"OMP_NUM_THREADS": "4"})
    assert "PS505" not in codes(env={})


def test_devices_stay_idle() -> None:
    assert "PS506" in codes(dp_replicate=4, devices_per_node=8, ranks_per_node=4)
    assert "PS506" not in codes(dp_replicate=8)
