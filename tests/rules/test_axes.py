from __future__ import annotations

from builders import codes, cpu_hosts

from parastrat.plan import Compile, Offload, Shard


def test_sequence_parallel_alone() -> None:
    assert "PS210" in codes(sequence_parallel=True, tp=1)
    assert "PS210" not in codes(sequence_parallel=True, tp=2)
    assert "PS210" not in codes(sequence_parallel=False, tp=1)


def test_sequence_does_not_divide() -> None:
    assert "PS211" in codes(sequence_parallel=True, tp=8, sequence_length=1020)
    assert "PS211" in codes(sequence_parallel=True, tp=4, cp=2, sequence_length=1020)
    assert "PS211" not in codes(sequence_parallel=True, tp=4, sequence_length=1020)
    assert "PS211" not in codes(sequence_parallel=False, tp=8, sequence_length=1020)


def test_positions_of_images_do_not_divide() -> None:
    assert "PS211" in codes(sequence_parallel=True, tp=2, sequence_length=None, positions=197)
    assert "PS211" not in codes(sequence_parallel=True, tp=2, sequence_length=None, positions=196)
    # of a model that shares none ranks have them all
    assert "PS211" not in codes(sequence_parallel=True, tp=2, sequence_length=None, positions=0)


def test_tensor_without_sequence_parallel() -> None:
    assert "PS212" in codes(tp=2)
    assert "PS212" not in codes(tp=2, sequence_parallel=True)
    assert "PS212" not in codes(tp=1)
    assert "PS212" in codes(tp=2, positions=196)
    assert "PS212" not in codes(tp=2, positions=197)
    assert "PS212" not in codes(tp=2, positions=0)


def test_nothing_to_shard_over() -> None:
    assert "PS215" in codes(shard=Shard.PARAMETERS, dp_replicate=8)
    assert "PS215" in codes(shard=Shard.OPTIMIZER)
    assert "PS215" not in codes(shard=Shard.PARAMETERS, dp_shard=8)
    assert "PS215" not in codes(shard=Shard.PARAMETERS, cp=8)
    assert "PS215" not in codes(shard=Shard.NONE, dp_replicate=8)


def test_replicas_on_the_shard_axis() -> None:
    assert "PS216" in codes(shard=Shard.NONE, dp_shard=8)
    assert "PS216" not in codes(shard=Shard.NONE, dp_replicate=8)
    assert "PS216" not in codes(shard=Shard.GRADIENTS, dp_shard=8)


def test_offload_without_a_device() -> None:
    assert "PS217" in codes(**cpu_hosts(offload=Offload.OPTIMIZER))
    assert "PS217" not in codes(**cpu_hosts())
    assert "PS217" not in codes(offload=Offload.OPTIMIZER)


def test_loss_parallel_alone() -> None:
    assert "PS219" in codes(loss_parallel=True)
    assert "PS219" not in codes(loss_parallel=True, tp=2)
    assert "PS219" not in codes()


def test_async_tensor_parallel_is_idle() -> None:
    assert "PS220" in codes(async_tp=True, tp=1, compile=Compile.BLOCK)
    assert "PS220" in codes(async_tp=True, tp=2, compile=Compile.NONE)
    assert "PS220" not in codes(async_tp=True, tp=2, compile=Compile.BLOCK)
    assert "PS220" not in codes(tp=2)
