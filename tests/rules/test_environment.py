from __future__ import annotations

from typing import Any

import pytest
from builders import codes

from parastrat.hardware import FabricKind, NetworkKind
from parastrat.plan import Shard


def fires(code: str, variables: dict[str, str], **changes: Any) -> bool:
    return code in codes(**({"dp_replicate": 16} | changes), env=variables)


def test_peer_access_is_disabled() -> None:
    assert fires("PS511", {"NCCL_P2P_DISABLE": "1"})
    assert not fires("PS511", {"NCCL_P2P_DISABLE": "0"})
    assert not fires("PS511", {"NCCL_P2P_DISABLE": "1"}, scale_up_kind=FabricKind.PCIE)


def test_infiniband_is_disabled() -> None:
    assert fires("PS512", {"NCCL_IB_DISABLE": "1"})
    assert fires("PS512", {"NCCL_IB_DISABLE": "1"}, network=NetworkKind.ROCE)
    assert not fires("PS512", {"NCCL_IB_DISABLE": "0"})
    assert not fires("PS512", {"NCCL_IB_DISABLE": "1"}, network=NetworkKind.ETHERNET)


def test_debugging_is_left_on() -> None:
    assert fires("PS513", {"NCCL_ALGO": "Ring"})
    assert fires("PS513", {"NCCL_SHM_DISABLE": "1"})
    assert not fires("PS513", {"NCCL_SHM_DISABLE": "0"})
    assert not fires("PS513", {"NCCL_SOCKET_IFNAME": "eth0"})


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_loopback_between_nodes(name: str) -> None:
    assert fires("PS514", {name: "lo"})
    assert not fires("PS514", {name: "lo"}, dp_replicate=8)
    assert not fires("PS514", {name: "eth0"})


def test_gloo_interface_is_a_pattern() -> None:
    assert fires("PS515", {"GLOO_SOCKET_IFNAME": "^lo"})
    assert fires("PS515", {"GLOO_SOCKET_IFNAME": "=eth0"})
    assert not fires("PS515", {"GLOO_SOCKET_IFNAME": "eth0"})
    assert not fires("PS515", {"NCCL_SOCKET_IFNAME": "^lo"})


def test_gid_index_is_pinned() -> None:
    assert fires("PS516", {"NCCL_IB_GID_INDEX": "3"})
    assert not fires("PS516", {})


def test_variable_was_renamed() -> None:
    assert fires("PS517", {"NCCL_ASYNC_ERROR_HANDLING": "1"})
    assert not fires("PS517", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})


def test_waits_in_two_ways() -> None:
    both = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert fires("PS518", both)
    assert not fires("PS518", both | {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
    assert not fires("PS518", both | {"TORCH_NCCL_BLOCKING_WAIT": "0"})


def test_nccl_log_is_loud() -> None:
    assert fires("PS519", {"NCCL_DEBUG": "info"})
    assert fires("PS519", {"NCCL_DEBUG": "TRACE"})
    assert not fires("PS519", {"NCCL_DEBUG": "WARN"})


def test_one_connection_under_fsdp() -> None:
    one = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    fsdp2 = {"dp_replicate": 1, "dp_shard": 8, "shard": Shard.PARAMETERS}
    assert fires("PS520", one, **fsdp2)
    assert not fires("PS520", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, **fsdp2)
    assert not fires("PS520", one)
    assert not fires("PS520", one, **(fsdp2 | {"dp_shard": 1}))
    # context ranks share the shards
    assert fires("PS520", one, **(fsdp2 | {"dp_shard": 1, "cp": 2}))


def test_ranks_may_share_a_gpu() -> None:
    assert fires("PS521", {"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    assert not fires("PS521", {"NCCL_MULTI_RANK_GPU_ENABLE": "0"})


def test_multi_node_nvlink_is_forced() -> None:
    assert fires("PS522", {"NCCL_MNNVL_ENABLE": "1"})
    assert not fires("PS522", {"NCCL_MNNVL_ENABLE": "0"})
    assert not fires("PS522", {"NCCL_MNNVL_ENABLE": "1"}, scale_up_kind=FabricKind.NVLINK_DOMAIN)


def test_collectives_are_checked() -> None:
    assert fires("PS523", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert not fires("PS523", {"TORCH_DISTRIBUTED_DEBUG": "INFO"})
