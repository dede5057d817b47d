"""GPUs that were found, as the hardware that their profiles and this host make."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.errors import ProbeError
from parastrat.hardware import DeviceType, FabricKind, FigureKind, Link, Provenance, Vendor
from parastrat.probe.files import whole
from parastrat.profiles import device_names, load_hardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.hardware import Device, Hardware, Network
    from parastrat.machine import Gpu

#: words that make another product of the same chip; a profile without them does not describe it
_VARIANTS = frozenset({"pcie", "nvl", "d", "laptop", "ti", "super", "mobile"})
#: driver versions differ in what they reserve of the same card
_MEMORY_TOLERANCE = 0.03
_PCIE_NODE = "8x-rtx-4090"
#: compute capability from which boards of eight have switches (HGX A100 and later)
_AMPERE = 8
_MOST_WITHOUT_SWITCH = 4


def gpu_hardware(gpus: Sequence[Gpu], num_nodes: int, network: Network) -> Hardware:
    """Return nodes of these GPUs: figures of their profile, fabric and network as found here.

    Raises:
        ProbeError: for GPUs that differ, that are split into slices, or that no profile describes.
    """
    device = profile_of(_the_kind(gpus), len(gpus))
    assumed = load_hardware(f"{device.name}x{len(gpus)}:{num_nodes}")
    kind = fabric(gpus) or assumed.scale_up_kind
    spans_nodes = kind is FabricKind.NVLINK_DOMAIN
    return replace(
        assumed,
        scale_up_kind=kind,
        scale_up=_scale_up(kind, assumed),
        scale_up_devices=assumed.scale_up_devices if spans_nodes else len(gpus),
        scale_out=_scale_out(assumed, network),
        network=network,
    )


def profile_of(gpu: Gpu, count: int = 1) -> Device:
    """Return the profile of a GPU, of which a host has ``count``.

    It has the same chip and form in its name, the same capability, the same memory.

    Raises:
        ProbeError: if there is none; the hint names the nearest and how to go on.
    """
    words = set(_words(gpu.name or ""))
    for name in device_names():
        if _is_named(name, words):
            device = load_hardware(f"{name}x1").device
            if _describes(device, gpu):
                return device
    memory = f", {gpu.memory_bytes / 2**30:.1f} GiB" if gpu.memory_bytes else ""
    raise ProbeError(
        f"no profile describes this GPU: {gpu.name}{memory}",
        hint=f"plan for the nearest with --on, such as --on {_nearest(gpu)}x{count}",
    )


def _profiles() -> list[Device]:
    return [load_hardware(f"{name}x1").device for name in device_names() if name != DeviceType.CPU]


def _nearest(gpu: Gpu) -> str:
    """Return the profile with the same compute capability, or else any, whose memory is closest."""
    profiles = _profiles()
    alike = [device for device in profiles if device.compute_capability == gpu.compute_capability]
    closest = min(alike or profiles, key=lambda device: abs(device.memory_bytes - (gpu.memory_bytes or 0)))
    return closest.name


def fabric(gpus: Sequence[Gpu]) -> FabricKind | None:
    """Return what joins the accelerators of a node; None where nothing tells.

    Where the far ends of NVLinks are hidden, as in VMs, more than four GPUs since Ampere have switches
    between them: boards without have four.
    """
    if len(gpus) < 2 and not any(gpu.nvlink_domain for gpu in gpus):
        return FabricKind.NONE
    if any(gpu.mig for gpu in gpus):
        return FabricKind.NONE
    if all(gpu.nvlink_domain for gpu in gpus):
        return FabricKind.NVLINK_DOMAIN
    links = {gpu.nvlinks for gpu in gpus}
    if links == {0}:
        return FabricKind.PCIE
    if links & {0, None}:
        return None
    if gpus[0].vendor is Vendor.AMD:
        return FabricKind.XGMI
    remotes = {gpu.nvlink_remote for gpu in gpus}
    if remotes == {None}:
        is_new = all(_major(gpu) >= _AMPERE for gpu in gpus)
        return FabricKind.NVSWITCH if is_new and len(gpus) > _MOST_WITHOUT_SWITCH else None
    kinds = {"SWITCH": FabricKind.NVSWITCH, "GPU": FabricKind.NVLINK}
    return kinds.get(remotes.pop() or "") if len(remotes) == 1 else None


def domain_size(gpus: Sequence[Gpu], kind: FabricKind | None) -> int | None:
    """Return how many accelerators share the fast fabric; None on hosts without, or where it is unknown.

    A host sees its own part of a domain that spans nodes; its size is that of the device's usual machine.
    """
    if not gpus or kind is None:
        return None
    if kind is not FabricKind.NVLINK_DOMAIN:
        return 1 if kind is FabricKind.NONE else len(gpus)
    try:
        device = profile_of(gpus[0])
    except ProbeError:
        return None
    return load_hardware(f"{device.name}x{len(gpus)}").scale_up_devices


def _the_kind(gpus: Sequence[Gpu]) -> Gpu:
    """Return one of the accelerators, all of which are alike."""
    silent = [str(at) for at, gpu in enumerate(gpus) if gpu.name is None]
    if silent:
        raise ProbeError(
            f"nothing tells what these accelerators are: {', '.join(silent)} of {len(gpus)}",
            hint="look at the driver (nvidia-smi, hl-smi, xpu-smi), or name the hardware with --on; "
            "--on cpu plans for the processors alone",
        )
    kinds = {(gpu.name, gpu.memory_bytes) for gpu in gpus}
    if len(kinds) > 1:
        names = ", ".join(sorted(str(name) for name, _ in kinds))
        raise ProbeError(
            f"this host has different GPUs: {names}",
            hint="choose equal ones by UUIDs in CUDA_VISIBLE_DEVICES; ranks of one job must be equal",
        )
    if any(gpu.mig for gpu in gpus):
        raise ProbeError(
            "the GPUs are split by MIG, and slices cannot reach each other",
            hint="turn MIG off, or plan for one slice alone with --on and --strategy single",
        )
    return gpus[0]


def _major(gpu: Gpu) -> int:
    return whole((gpu.compute_capability or "").partition(".")[0]) or 0


def _is_named(profile: str, words: set[str]) -> bool:
    """Return whether a GPU's name has a profile's chip, and the same variant of it."""
    described = _words(profile)
    chip = {described[0]} if described[0] != "rtx" else set(described[:2])
    return chip <= words and words & _VARIANTS == set(described) & _VARIANTS


def _describes(device: Device, gpu: Gpu) -> bool:
    if gpu.vendor is not device.vendor:
        return False
    if gpu.compute_capability not in (None, device.compute_capability):
        return False
    if gpu.memory_bytes is None:
        return True
    return abs(gpu.memory_bytes / device.memory_bytes - 1) <= _MEMORY_TOLERANCE


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


def _scale_up(kind: FabricKind, assumed: Hardware) -> Link | None:
    """Return the links of the fabric that was found; another fabric's figures do not hold."""
    if kind is FabricKind.NONE:
        return None
    if kind is not FabricKind.PCIE or assumed.scale_up_kind is FabricKind.PCIE:
        return assumed.scale_up
    link = load_hardware(_PCIE_NODE).scale_up
    if link is None:  # pragma: no cover - a test holds the profile to it
        return None
    source = f"PCIe was found between the GPUs: as in {_PCIE_NODE}"
    return replace(
        link, provenance=tuple(replace(p, kind=FigureKind.ASSUMED, source=source) for p in link.provenance)
    )


def _scale_out(assumed: Hardware, network: Network) -> Link | None:
    """Return the assumed link at the rate that the host's cards state."""
    link = assumed.scale_out
    if link is None or network.node_bits_per_s is None:
        return link
    nominal = network.node_bits_per_s / 8 / assumed.devices_per_node
    achieved = nominal * link.bytes_per_s / link.nominal_bytes_per_s
    rate = Provenance(
        field="nominal_bytes_per_s", kind=FigureKind.MEASURED, source="rate of this host's network cards"
    )
    others = tuple(entry for entry in link.provenance if entry.field != rate.field)
    return replace(link, nominal_bytes_per_s=nominal, bytes_per_s=achieved, provenance=(rate, *others))
