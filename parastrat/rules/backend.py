"""The communication backend for some hardware, and the environment that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from parastrat.hardware import NetworkKind
from parastrat.plan import Backend
from parastrat.rules.backend_row import Asked
from parastrat.rules.backend_table import ROWS

if TYPE_CHECKING:
    from parastrat.hardware import Hardware

__all__ = ["Asked", "BackendDecision", "backend_between_nodes", "decide_backend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDecision:
    """What one row of the backend table says of some hardware."""

    #: id of the row
    row: str
    #: None for one process
    backend: Backend | None
    #: argument of ``init_process_group``, such as ``cpu:gloo,cuda:nccl``; empty for one process
    init: str
    #: what to do when the choice fails; empty where nothing is left
    fallback: str
    reason: str
    url: str
    #: variables that every rank needs
    env: Mapping[str, str] = field(default_factory=dict)
    #: what is left when the documented choice is out of reach
    options: tuple[str, ...] = ()
    #: every fact that the choice rests on is known
    certain: bool = True


def decide_backend(hardware: Hardware, asked: Asked = Asked.DOCUMENTED) -> BackendDecision:
    """Return the backend of some hardware by the first row that matches.

    Args:
        hardware: all nodes of the job; on one node no network is involved.
        asked: something else than the documented choice. Where its row names no backend of its own, the
            documented one stands, and the row says why.
    """
    found = next((row for row in ROWS if row.asked is asked and row.when(hardware)), None)
    if found is None:
        # what was asked for has no meaning on this hardware
        return decide_backend(hardware)
    decision = BackendDecision(
        row=found.row,
        backend=found.backend,
        init=found.init,
        fallback=found.fallback,
        reason=found.reason,
        url=found.url,
        env=_environment(hardware, found.backend),
        options=_options(hardware) if found.backend is Backend.MPI else (),
        certain=found.certain,
    )
    return decision if asked is Asked.DOCUMENTED else _answered(decision, hardware, asked)


def backend_between_nodes(hardware: Hardware) -> BackendDecision:
    """Return the backend for a job over several nodes of this kind, for a host that is probed alone."""
    return decide_backend(replace(hardware, num_nodes=max(2, hardware.num_nodes)))


def _answered(decision: BackendDecision, hardware: Hardware, asked: Asked) -> BackendDecision:
    """Complete a row that somebody asked for with the documented choice that it stands on."""
    documented = decide_backend(hardware)
    env = dict(documented.env)
    if asked is Asked.FAKE:
        return replace(decision, env={})
    if asked is Asked.TORCHCOMMS:
        env["TORCH_DISTRIBUTED_USE_TORCHCOMMS"] = "1"
    if asked is Asked.GLOO_IBVERBS:
        return replace(decision, env=dict(decision.env) | {"GLOO_DEVICE_TRANSPORT": "IBVERBS"})
    return replace(
        decision,
        backend=documented.backend,
        init=documented.init,
        fallback=decision.fallback or documented.fallback,
        env=env,
        options=documented.options,
        certain=documented.certain,
    )


def _environment(hardware: Hardware, backend: Backend | None) -> dict[str, str]:
    """Return the variables that a backend needs between nodes; inside one it needs none."""
    network = hardware.network
    if backend is None or hardware.num_nodes == 1:
        return {}
    if backend is Backend.GLOO:
        # Gloo takes exact names; on InfiniBand only an IP interface on it is worth naming
        by_name = network.kind is not NetworkKind.INFINIBAND or network.ipoib is True
        return {"GLOO_SOCKET_IFNAME": network.socket_ifname} if network.socket_ifname and by_name else {}
    if backend is not Backend.NCCL:
        return {}
    env: dict[str, str] = {}
    if network.kind in {NetworkKind.INFINIBAND, NetworkKind.ROCE} and network.compute_hcas:
        # "=" asks for exact names, so that storage cards stay out
        env["NCCL_IB_HCA"] = "=" + ",".join(network.compute_hcas)
    if network.kind is NetworkKind.EFA:
        env["FI_PROVIDER"] = "efa"
        # interface names differ between instances
        env["NCCL_SOCKET_IFNAME"] = "^docker,lo,veth"
    elif network.kind is NetworkKind.SLINGSHOT:
        env["NCCL_SOCKET_IFNAME"] = "hsn"
        if network.plugin:
            env["NCCL_NET"] = "AWS Libfabric"
    elif network.socket_ifname:
        env["NCCL_SOCKET_IFNAME"] = network.socket_ifname
    return env


def _options(hardware: Hardware) -> tuple[str, ...]:
    """Return what is left to those whose torch has no MPI."""
    network = hardware.network
    interface = network.socket_ifname or "the Ethernet interface"
    rate = network.node_bits_per_s
    instead = f" instead of InfiniBand's {rate / 1e9:,.0f} Gbit/s" if rate else ""
    return (
        "enable IP over InfiniBand (an ib interface that is up and has an address), then use Gloo over it",
        f"use Gloo over {interface}, at its bandwidth{instead}",
        "build torch from source on a host that has MPI (USE_MPI=1)",
    )
