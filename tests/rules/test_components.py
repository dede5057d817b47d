from __future__ import annotations

import pytest
from builders import codes, cpu_hosts

from parastrat.plan import Offload, Shard
from parastrat.rules import rule_named
from parastrat.workload import Optimizer


def test_replicas_in_one_node() -> None:
    assert "PS390" in codes(dp_replicate=8)
    assert "PS390" not in codes(dp_replicate=16)
    assert "PS390" not in codes(dp_shard=8, shard=Shard.PARAMETERS)
    assert "PS390" not in codes()
    assert "PS390" not in codes(**cpu_hosts(devices_per_node=2, num_nodes=1))
    for axis in ("tp", "pp", "cp"):
        assert "PS390" not in codes(dp_replicate=2, **{axis: 2})


def test_shards_in_one_node() -> None:
    assert "PS391" in codes(dp_shard=8, shard=Shard.PARAMETERS)
    assert "PS391" not in codes(dp_shard=16, shard=Shard.PARAMETERS)
    assert "PS391" not in codes(dp_replicate=8, shard=Shard.PARAMETERS)
    assert "PS391" not in codes(dp_shard=8, shard=Shard.OPTIMIZER)
    assert "PS391" not in codes(
        **cpu_hosts(dp_replicate=1, dp_shard=2, shard=Shard.PARAMETERS, devices_per_node=2, num_nodes=1)
    )


def test_optimizer_alone_is_sharded() -> None:
    assert "PS392" in codes(dp_shard=8, shard=Shard.OPTIMIZER)
    assert "PS392" not in codes(dp_shard=8, shard=Shard.GRADIENTS)
    assert "PS392" not in codes(shard=Shard.OPTIMIZER)


def test_fsdp1_is_legacy() -> None:
    assert "PS393" in codes(stack="fsdp1", dp_shard=8, shard=Shard.PARAMETERS)
    assert "PS393" not in codes(dp_shard=8, shard=Shard.PARAMETERS)
    assert "PS393" not in codes(stack="fsdp1")


def test_adafactor_of_divided_parameters() -> None:
    shards = {"dp_shard": 8, "shard": Shard.PARAMETERS}
    assert "PS394" in codes(optimizer=Optimizer.ADAFACTOR, **shards)
    assert "PS394" in codes(optimizer=Optimizer.ADAFACTOR, cp=8, shard=Shard.PARAMETERS)
    assert "PS394" in codes(optimizer=Optimizer.ADAFACTOR, tp=2)
    assert "PS394" not in codes(optimizer=Optimizer.ADAFACTOR, dp_replicate=8)
    assert "PS394" not in codes(optimizer=Optimizer.ADAMW, **shards)
    assert "PS394" not in codes(optimizer=Optimizer.ADAFACTOR, dtensors=False, tp=2)


def test_muon_on_the_host() -> None:
    assert "PS395" in codes(optimizer=Optimizer.MUON, offload=Offload.OPTIMIZER)
    assert "PS395" in codes(optimizer=Optimizer.MUON, offload=Offload.PARAMETERS)
    assert "PS395" not in codes(optimizer=Optimizer.MUON)
    assert "PS395" not in codes(optimizer=Optimizer.ADAMW, offload=Offload.OPTIMIZER)
    assert "PS395" not in codes(**cpu_hosts(optimizer=Optimizer.MUON, offload=Offload.OPTIMIZER))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("PS380", "torch.distributed.rpc works in 2.13"),
        ("PS381", "servers"),
        ("PS382", "not with FSDP, tp or pp"),
        ("PS383", "deprecated"),
        ("PS384", "HashStore"),
        ("PS385", "--nnodes min:max"),
        ("PS386", "register_backend"),
        ("PS387", "one process"),
        ("PS388", "torchcomms"),
        ("PS389", "torchft"),
        ("PS390", "DataParallel"),
        ("PS391", 'device_map="auto"'),
        ("PS392", "optimizer"),
        ("PS393", "NO_SHARD"),
        ("PS394", "Rprop"),
        ("PS395", "fifteen products"),
    ],
)
def test_every_collected_component_is_explained(code: str, said: str) -> None:
    rule = rule_named(code)
    assert rule is not None
    assert said in f"{rule.title}. {rule.rationale}"
