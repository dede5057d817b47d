"""Asks the NVIDIA driver for its GPUs and prints the answer as JSON.

Run as a process of its own, because a sick driver can block its caller for ever. Every fact is asked for
by itself, so that one that is missing does not hide the others: it is null then. The format is that of a
recorded host's ``nvml.json``. Calls and traps: nvidia-ml-py 13.615.71.
"""

from __future__ import annotations

import json
import sys
from typing import Any

#: NVML_P2P_CAPS_INDEX_READ, which the binding has as a tuple
_READ = 0
_LINK_REMOTES = {0: "GPU", 1: "NPU", 2: "SWITCH"}


def main() -> None:
    """Print the facts, or why there are none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        json.dump({"gpus": [], "trouble": type(error).__name__, "message": str(error)}, sys.stdout)
        return
    count = pynvml.nvmlDeviceGetCount()
    gpus = [_gpu(pynvml, index) for index in range(count)]
    answer = {
        "driver": _ask(pynvml, "nvmlSystemGetDriverVersion"),
        "gpus": gpus,
        "p2p": _peer_access(pynvml, count),
    }
    json.dump(answer, sys.stdout)


def _ask(pynvml: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
    """Return a call's answer; None where the driver refuses it or the binding is too old to have it."""
    call = getattr(pynvml, name, None)
    if call is None:
        return None
    try:
        return call(*arguments, **keywords)
    except pynvml.NVMLError:
        return None


def _gpu(pynvml: Any, index: int) -> dict[str, Any]:
    handle = _ask(pynvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return {"name": None}
    memory = _ask(pynvml, "nvmlDeviceGetMemoryInfo", handle, version=pynvml.nvmlMemory_v2)
    links, remote = _links(pynvml, handle)
    pci = _ask(pynvml, "nvmlDeviceGetPciInfo", handle)
    return {
        "name": _ask(pynvml, "nvmlDeviceGetName", handle),
        "uuid": _ask(pynvml, "nvmlDeviceGetUUID", handle),
        "memory_total_bytes": memory.total if memory is not None else None,
        "cuda_cc": _ask(pynvml, "nvmlDeviceGetCudaComputeCapability", handle),
        "mig": _ask(pynvml, "nvmlDeviceGetMigMode", handle),
        "nvlink_active": links,
        "nvlink_remote_type": remote,
        "nvlink_peers": _peers(pynvml, handle) if remote == "GPU" else {},
        "fabric": _fabric(pynvml, handle),
        "bus_id": _text(getattr(pci, "busId", None)),
        "numa": _ask(pynvml, "nvmlDeviceGetNumaNodeId", handle),
        "pcie_gen_cur": _ask(pynvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_gen_max": _ask(pynvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width_cur": _ask(pynvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": _ask(pynvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        "ecc": _ask(pynvml, "nvmlDeviceGetEccMode", handle),
        "power_limit_mw": _ask(pynvml, "nvmlDeviceGetEnforcedPowerLimit", handle),
    }


def _text(value: Any) -> str | None:
    """Return text; older releases of the binding give bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _links(pynvml: Any, handle: Any) -> tuple[int, str | None]:
    """Return the number of active NVLinks and what is at their other end."""
    active, remotes = 0, set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _ask(pynvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:  # not supported, or past the last link
            break
        if state == pynvml.NVML_FEATURE_ENABLED:
            active += 1
            remotes.add(_ask(pynvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link))
    return active, _LINK_REMOTES.get(remotes.pop()) if len(remotes) == 1 else None


def _peer_access(pynvml: Any, count: int) -> list[list[int | None]]:
    """Return NVML's state of reading from each GPU to each other: 0 is fine, None for itself."""
    handles = [_ask(pynvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    return [
        [
            None if one is other else _ask(pynvml, "nvmlDeviceGetP2PStatus", one, other, _READ)
            for other in handles
        ]
        for one in handles
    ]


def _peers(pynvml: Any, handle: Any) -> dict[str, int]:
    """Return the number of active NVLinks to each GPU, by its PCI address."""
    peers: dict[str, int] = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _ask(pynvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break
        if state != pynvml.NVML_FEATURE_ENABLED:
            continue
        remote = _ask(pynvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        address = _text(getattr(remote, "busId", None))
        if address is not None:
            peers[address] = peers.get(address, 0) + 1
    return peers


def _fabric(pynvml: Any, handle: Any) -> dict[str, Any] | None:
    """Return the NVLink domain that spans nodes; None on machines without one."""
    from ctypes import byref  # noqa: PLC0415 - in the child only

    if hasattr(pynvml, "c_nvmlGpuFabricInfo_v3_t"):
        info, version = pynvml.c_nvmlGpuFabricInfo_v3_t(), pynvml.nvmlGpuFabricInfo_v3
    else:  # nvidia-ml-py before 13
        info, version = pynvml.c_nvmlGpuFabricInfoV_t(), pynvml.nvmlGpuFabricInfo_v2
    info.version = version  # some releases of the binding do not set it
    if _ask(pynvml, "nvmlDeviceGetGpuFabricInfoV", handle, byref(info)) is None:
        return None
    return {
        "state": info.state,
        "status": info.status,
        "clusterUuid": bytes(info.clusterUuid).hex(),
        "cliqueId": info.cliqueId,
    }


if __name__ == "__main__":
    main()
