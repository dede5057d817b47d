"""What the driver's child process says, and what becomes of one that does not answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from parastrat.errors import ProbeError
from parastrat.hardware import FabricKind, Network, NetworkKind
from parastrat.probe import nvml
from parastrat.probe.accelerators import fabric, gpu_hardware, profile_of
from parastrat.probe.nvml import Gpu, GpuFacts, ask, facts_of, visible

H100 = Gpu(
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-1a",
    memory_bytes=81559 * 2**20,
    compute_capability="9.0",
    nvlinks=18,
    nvlink_remote="SWITCH",
)
NETWORK = Network(kind=NetworkKind.UNKNOWN)


def like(gpu: Gpu, **changes: Any) -> Gpu:
    return Gpu(**({name: getattr(gpu, name) for name in Gpu.__slots__} | changes))


def test_a_driver_that_hangs_is_a_fact() -> None:
    start = time.monotonic()
    facts = ask((sys.executable, "-c", "import time; time.sleep(60)"), time_limit_s=0.3)
    assert time.monotonic() - start < 5
    assert facts.gpus == ()
    assert "did not answer within 0.3 s" in (facts.trouble or "")


def test_a_driver_that_ignores_signals_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []

    class Stuck(subprocess.Popen[str]):
        def kill(self) -> None:
            killed.append(self.pid)

    monkeypatch.setattr(nvml.subprocess, "Popen", Stuck)
    facts = ask((sys.executable, "-c", "import time; time.sleep(4)"), time_limit_s=0.2)
    assert facts.trouble
    os.kill(killed[0], 9)
    os.waitpid(killed[0], 0)


def test_a_child_that_dies_says_why() -> None:
    facts = ask((sys.executable, "-c", "raise SystemExit('segfault in libnvidia-ml')"), time_limit_s=10)
    assert "segfault in libnvidia-ml" in (facts.trouble or "")


def test_the_real_child_answers_here() -> None:
    facts = ask((sys.executable, "-m", "parastrat.probe.nvml_child"), time_limit_s=30)
    assert facts.trouble is None or facts.trouble.startswith("NVML")


def test_no_driver_is_no_gpu() -> None:
    assert facts_of('{"gpus": [], "trouble": "NVMLError_LibraryNotFound"}') == GpuFacts()


def test_a_driver_in_trouble_is_not_taken_for_none() -> None:
    facts = facts_of(
        '{"gpus": [], "trouble": "NVMLError_LibRmVersionMismatch", "message": "Driver mismatch"}'
    )
    assert facts.trouble == "NVML: Driver mismatch"


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"gpus": [3]}', '{"gpus": [{}]}'])
def test_a_malformed_record_is_named(record: str) -> None:
    with pytest.raises(ProbeError, match="malformed"):
        facts_of(record)


@pytest.mark.parametrize(
    ("setting", "names"),
    [(None, "abc"), ("", ""), ("0,2", "ac"), ("2,0", "ca"), ("-1", ""), ("0,9,1", "a"), ("GPU-b,0", "ba")],
)
def test_visible_devices(setting: str | None, names: str) -> None:
    facts = GpuFacts(gpus=tuple(Gpu(name=name, uuid=f"GPU-{name}") for name in "abc"))
    assert "".join(str(gpu.name) for gpu in visible(facts, setting, "PCI_BUS_ID").gpus) == names
    alike = GpuFacts(gpus=tuple(Gpu(name="x", uuid=f"GPU-{name}") for name in "abc"))
    assert len(visible(alike, setting).gpus) == len(names)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        # CUDA counts the fastest first, NVML by address
        ("0", "of several kinds"),
        ("GPU-a,1", "of several kinds"),
        ("MIG-a", "a part of a GPU"),
        ("GPU-a,GPU-a", "names a GPU twice"),
    ],
)
def test_visible_devices_that_may_be_others(setting: str, message: str) -> None:
    facts = GpuFacts(gpus=tuple(Gpu(name=name, uuid=f"GPU-{name}") for name in "abc"))
    with pytest.raises(ProbeError, match=message):
        visible(facts, setting)


def test_digits_of_other_scripts_are_no_numbers() -> None:
    assert visible(GpuFacts(gpus=(Gpu(name="a"),)), "\u00b2").gpus == ()


@pytest.mark.parametrize(
    ("fabric_info", "spans"),
    [
        (None, False),
        ({"state": 3, "status": 0, "clusterUuid": "5fe9d1a0-6a0c", "cliqueId": 1}, True),
        ({"state": 3, "status": 0, "clusterUuid": "00000000-0000", "cliqueId": 0}, False),
        ({"state": 2, "status": 0, "clusterUuid": "5fe9d1a0-6a0c", "cliqueId": 1}, False),
        ({"state": 3, "status": 1, "clusterUuid": "5fe9d1a0-6a0c", "cliqueId": 1}, False),
    ],
)
def test_a_fabric_needs_a_cluster(fabric_info: dict[str, Any] | None, spans: bool) -> None:
    (gpu,) = facts_of(json.dumps({"gpus": [{"name": "NVIDIA GB200", "fabric": fabric_info}]})).gpus
    assert gpu.nvlink_domain is spans


@pytest.mark.parametrize(
    ("name", "mib", "capability", "profile"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "9.0", "h100-sxm5"),
        ("NVIDIA H200", 143771, "9.0", "h200-sxm"),
        ("NVIDIA A100-SXM4-40GB", 40960, "8.0", "a100-sxm4-40"),
        ("NVIDIA A100-SXM4-80GB", 81920, "8.0", "a100-sxm4-80"),
        ("NVIDIA GeForce RTX 4090", 24564, "8.9", "rtx-4090"),
        ("NVIDIA B200", 183359, "10.0", "b200"),
        ("NVIDIA H100 PCIe", 81559, "9.0", "h100-pcie"),
        ("NVIDIA A100 80GB PCIe", 81920, "8.0", "a100-pcie-80"),
        ("NVIDIA A100-PCIE-40GB", 40960, "8.0", "a100-pcie-40"),
        ("NVIDIA H200 NVL", 143771, "9.0", "h200-nvl"),
        ("NVIDIA H20", 97871, "9.0", "h20"),
        ("Tesla V100-SXM2-32GB", 32768, "7.0", "v100-sxm2-32"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "12.0", "rtx-pro-6000"),
    ],
)
def test_profile_of_a_gpu(name: str, mib: int, capability: str, profile: str) -> None:
    gpu = Gpu(name=name, memory_bytes=mib * 2**20, compute_capability=capability)
    assert profile_of(gpu, 8).name == profile


@pytest.mark.parametrize(
    ("name", "mib", "capability", "nearest"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "8.9", "x8"),
        ("NVIDIA GeForce RTX 4090 D", 24564, "8.9", "rtx-4090x8"),
        ("NVIDIA GeForce RTX 3090 Ti", 24564, "8.6", "rtx-3090x8"),
        ("NVIDIA H100 80GB HBM3", 81559, "9.9", "h100"),
        ("NVIDIA A100-SXM4-80GB", 60000, "8.0", "a100"),
        ("NVIDIA RTX PRO 4000 Blackwell", 24467, "12.0", "x8"),
    ],
)
def test_another_product_of_the_same_chip_is_not_taken_for_it(
    name: str, mib: int, capability: str, nearest: str
) -> None:
    gpu = Gpu(name=name, memory_bytes=mib * 2**20, compute_capability=capability)
    with pytest.raises(ProbeError, match=name) as caught:
        profile_of(gpu, 8)
    assert nearest in caught.value.hint


def test_fabric() -> None:
    single = like(H100, nvlink_remote="GPU")
    assert fabric([H100] * 8) is FabricKind.NVSWITCH
    assert fabric([single] * 4) is FabricKind.NVLINK
    assert fabric([H100]) is FabricKind.NONE
    assert fabric([like(H100, nvlinks=0)] * 2) is FabricKind.PCIE
    assert fabric([like(H100, nvlink_domain=True)] * 4) is FabricKind.NVLINK_DOMAIN
    # a VM hides the far end: boards of eight have switches, of fewer the profile's assumption stands
    assert fabric([like(H100, nvlink_remote=None)] * 8) is FabricKind.NVSWITCH
    assert fabric([like(H100, nvlink_remote=None)] * 4) is None
    assert fabric([like(H100, nvlink_remote=None, compute_capability="7.0")] * 8) is None
    assert fabric([like(H100, nvlinks=None)] * 8) is None
    assert fabric([like(H100, mig=True)] * 8) is FabricKind.NONE


def test_pcie_between_gpus_of_an_nvlink_profile_has_pcie_figures() -> None:
    switched = gpu_hardware([H100] * 2, 1, NETWORK).scale_up
    plain = gpu_hardware([like(H100, nvlinks=0)] * 2, 1, NETWORK)
    assert switched is not None
    assert plain.scale_up is not None
    assert plain.scale_up.bytes_per_s < switched.bytes_per_s / 4
    assert plain.scale_up_kind is FabricKind.PCIE


def test_a_domain_reaches_beyond_the_node() -> None:
    gb200 = Gpu(
        name="NVIDIA GB200",
        memory_bytes=189471 * 2**20,
        nvlinks=18,
        nvlink_remote="SWITCH",
        nvlink_domain=True,
    )
    assert gpu_hardware([gb200] * 4, 2, NETWORK).scale_up_devices == 72
    assert gpu_hardware([like(gb200, nvlink_domain=False)] * 4, 2, NETWORK).scale_up_devices == 4


def test_different_gpus_are_refused() -> None:
    with pytest.raises(ProbeError, match="different GPUs"):
        gpu_hardware([H100, like(H100, name="NVIDIA H200")], 1, NETWORK)


def test_slices_are_refused() -> None:
    with pytest.raises(ProbeError, match="MIG"):
        gpu_hardware([like(H100, mig=True)], 1, NETWORK)


def test_pynvml_is_imported_in_the_child_only() -> None:
    code = "import parastrat.probe, sys; sys.exit('pynvml' in sys.modules or 'torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("states", "access"),
    [
        ([[None, 0], [0, None]], (True, True)),
        ([[None, 1], [0, None]], (False, True)),
        ([[None, None], [0, None]], (None, True)),
        ([[None, 0]], (None, None)),
        ("no", (None, None)),
        ([7, [0, None]], (None, True)),
    ],
)
def test_peer_access(states: object, access: tuple[bool | None, ...]) -> None:
    record = json.dumps({"gpus": [{"name": "NVIDIA L4"}] * 2, "p2p": states})
    assert tuple(gpu.peer_access for gpu in facts_of(record).gpus) == access
