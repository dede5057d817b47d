"""NVIDIA GPUs as their driver tells of them, without being blocked by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parastrat.errors import ProbeError
from parastrat.probe.files import read_text
from parastrat.probe.host import LIVE

#: a driver that answers at all does so within a second, many GPUs without persistence mode in three
TIME_LIMIT_S = 5.0
#: signs of a driver that cannot block: the kernel module's, and WSL's
_DRIVER = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")
#: NVML_GPU_FABRIC_STATE_COMPLETED
_FABRIC_COMPLETED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. None is unknown."""

    name: str | None
    uuid: str | None = None
    memory_bytes: int | None = None
    #: such as ``9.0``
    compute_capability: str | None = None
    #: split into slices that cannot reach each other
    mig: bool = False
    nvlinks: int = 0
    #: what the NVLinks lead to: ``SWITCH``, ``GPU`` or ``NPU``
    nvlink_remote: str | None = None
    #: a domain of NVLink that spans nodes
    nvlink_domain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The GPUs of a host, or why they cannot be told."""

    gpus: tuple[Gpu, ...] = ()
    #: None: the driver answered, or there is none
    trouble: str | None = None


def read_gpus(root: Path) -> GpuFacts:
    """Ask the driver of this machine, or read the record of another (``nvml.json``).

    Raises:
        ProbeError: for a record that is malformed.
    """
    if root != LIVE:
        record = read_text(root / "nvml.json")
        return facts_of(record) if record is not None else GpuFacts()
    if not any((root / sign).exists() for sign in _DRIVER):
        return GpuFacts()
    child = (sys.executable, "-m", "parastrat.probe.nvml_child")
    return visible(ask(child, TIME_LIMIT_S), os.environ.get("CUDA_VISIBLE_DEVICES"))


def ask(command: Sequence[str], time_limit_s: float) -> GpuFacts:
    """Run the command that prints the facts; one that hangs or fails is a fact too."""
    child = subprocess.Popen(  # noqa: S603 - our own module
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, error = child.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return GpuFacts(trouble=f"the NVIDIA driver did not answer within {time_limit_s:g} s")
    if child.returncode:
        last = error.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        return GpuFacts(trouble=f"asking the NVIDIA driver failed: {last[0]}")
    return facts_of(out)


def _abandon(child: subprocess.Popen[str]) -> None:
    """Kill a child, but do not wait for it: one that hangs inside the driver does not die."""
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        child.returncode = -9  # else the interpreter would warn of a child that it cannot end either


def facts_of(record: str) -> GpuFacts:
    """Read the JSON that the child prints and that recorded hosts carry.

    Raises:
        ProbeError: for anything else.
    """
    try:
        table = json.loads(record)
        gpus = tuple(_gpu(entry) for entry in table["gpus"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(
            f"the record of the GPUs is malformed: {error!r}",
            hint="record the host again, or use --on NAME",
        ) from error
    trouble = table.get("trouble")
    if trouble in {"NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"}:
        return GpuFacts()  # a machine without a driver has no GPU that torch could use
    return GpuFacts(gpus=gpus, trouble=f"NVML: {table.get('message', trouble)}" if trouble else None)


def _gpu(entry: Mapping[str, Any]) -> Gpu:
    capability, fabric, mig = entry.get("cuda_cc"), entry.get("fabric") or {}, entry.get("mig")
    cluster = str(fabric.get("clusterUuid") or "").replace("-", "")
    return Gpu(
        name=entry["name"],
        uuid=entry.get("uuid"),
        memory_bytes=entry.get("memory_total_bytes"),
        compute_capability=".".join(map(str, capability)) if capability else None,
        mig=bool(mig and mig[0]),
        nvlinks=entry.get("nvlink_active") or 0,
        nvlink_remote=entry.get("nvlink_remote_type"),
        # H100 boxes report a completed fabric with a zero cluster (meta-pytorch/torchcomms#936)
        nvlink_domain=fabric.get("state") == _FABRIC_COMPLETED
        and fabric.get("status") == 0
        and bool(cluster.strip("0")),
    )


def visible(facts: GpuFacts, setting: str | None) -> GpuFacts:
    """Keep what CUDA_VISIBLE_DEVICES leaves: NVML does not heed it, torch does.

    As CUDA reads it, an entry that names no device ends the list.
    """
    if setting is None:
        return facts
    kept: list[Gpu] = []
    for entry in filter(None, (part.strip() for part in setting.split(","))):
        if entry.isdigit():
            chosen = facts.gpus[int(entry) : int(entry) + 1]
        else:
            chosen = tuple(gpu for gpu in facts.gpus if gpu.uuid and gpu.uuid.startswith(entry))
        if len(chosen) != 1:
            break
        kept += chosen
    return GpuFacts(gpus=tuple(kept), trouble=facts.trouble)
