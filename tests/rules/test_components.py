from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import codes, cpu_hosts
from jobs import plan

from parastrat.assess import assess, columns_of
from parastrat.case import Facts
from parastrat.plan import Offload, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.rules import findings_of, rule_named
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload


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


def told_of_adamw(optimizer: Optimizer = Optimizer.ADAMW, **stack: Any) -> str:
    """Return what PS396 says of BERT on eight devices that each update all of it; nothing: empty."""
    own, precision = replace(load_stack("torch"), **stack), Precision.BF16_MIXED
    facts = Facts(
        model=load_source("bert-large").at(512, precision, own.kernels),
        hardware=load_hardware("dgx-a100"),
        workload=Workload(
            global_batch_size=256, sequence_length=512, optimizer=optimizer, precision=precision
        ),
        stack=own,
    )
    case = assess(facts, plan(dp_replicate=8, micro_batch_size=32))
    findings = findings_of(case, columns_of(case))
    return next((each.message for each in findings if each.code == "PS396"), "")


def test_adamw_is_taken_to_be_fused() -> None:
    # 0.34 billion parameters: 7 tensors of 4 bytes at 2.04 TB/s over 1.2 are 5.5 of 260 ms
    assert told_of_adamw().startswith("the optimizer takes 2.1 % of a step")
    assert told_of_adamw().endswith("without, up to 2.9 times as long")
    assert not told_of_adamw(Optimizer.SGD_MOMENTUM)
    assert not told_of_adamw(steps_in_one_kernel=True)
    assert not told_of_adamw(steps_by_operation=True)


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
        ("PS396", "20 tensors where 7"),
    ],
)
def test_every_collected_component_is_explained(code: str, said: str) -> None:
    rule = rule_named(code)
    assert rule is not None
    assert said in f"{rule.title}. {rule.rationale}"
