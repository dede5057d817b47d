"""What the child asks the driver, one fact at a time."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from parastrat.probe import nvml_child
from parastrat.probe.nvml import facts_of


class _FabricInfo(ctypes.Structure):
    pass


def fake_pynvml(**answers: Any) -> SimpleNamespace:
    """Return a driver that answers with these values and refuses all else."""

    class NVMLError(Exception):
        pass

    def refuse(*_: object, **__: object) -> Any:
        raise NVMLError

    class Fake(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            return refuse

    def answering(value: Any) -> Any:
        return lambda *_, **__: value

    driver = Fake(NVMLError=NVMLError, c_nvmlGpuFabricInfo_v3_t=_FabricInfo, nvmlGpuFabricInfo_v3=3)
    driver.NVML_NVLINK_MAX_LINKS, driver.NVML_FEATURE_ENABLED, driver.nvmlMemory_v2 = 36, 1, 2
    for name, value in answers.items():
        setattr(driver, name, answering(value))
    return driver


def test_one_fact_that_is_missing_does_not_hide_the_others() -> None:
    driver = fake_pynvml(
        nvmlDeviceGetHandleByIndex="handle",
        nvmlDeviceGetName="NVIDIA H100 80GB HBM3",
        nvmlDeviceGetCudaComputeCapability=(9, 0),
    )
    record = nvml_child._gpu(driver, 0)
    assert record["name"] == "NVIDIA H100 80GB HBM3"
    assert record["memory_total_bytes"] is None
    assert record["nvlink_active"] == 0
    (gpu,) = facts_of(json.dumps({"gpus": [record]})).gpus
    assert gpu.compute_capability == "9.0"


def test_nvlinks_are_counted_up_to_the_last() -> None:
    driver = fake_pynvml(nvmlDeviceGetNvLinkRemoteDeviceType=2)
    states = [1, 1, 0, 1]

    def state(_handle: object, link: int) -> int:
        if link >= len(states):
            raise driver.NVMLError
        return states[link]

    driver.nvmlDeviceGetNvLinkState = state
    assert nvml_child._links(driver, "handle") == (3, "SWITCH")


def test_every_call_that_the_child_makes_is_one_of_the_bindings() -> None:
    import pynvml

    source = Path(nvml_child.__file__).read_text()
    names = set(re.findall(r"\bnvml[A-Z]\w+", source)) - {"nvmlGpuFabricInfo_v2", "nvmlGpuFabricInfo_v3"}
    assert {"nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetNumaNodeId"} <= names
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []


def test_a_binding_without_a_call_leaves_its_fact_open() -> None:
    driver = SimpleNamespace(NVMLError=RuntimeError)
    assert nvml_child._ask(driver, "nvmlDeviceGetNumaNodeId", "handle") is None


def test_links_to_other_gpus_are_counted_by_their_address() -> None:
    driver = fake_pynvml()
    ends = [b"00000000:1B:00.0", "00000000:1B:00.0", "00000000:43:00.0"]
    driver.nvmlDeviceGetNvLinkState = lambda _, link: 1 if link < 3 else driver.nvmlNothing()
    driver.nvmlDeviceGetNvLinkRemotePciInfo = lambda _, link: SimpleNamespace(busId=ends[link])
    assert nvml_child._peers(driver, "handle") == {"00000000:1B:00.0": 2, "00000000:43:00.0": 1}


def test_peer_access_is_asked_for_every_pair() -> None:
    driver = fake_pynvml()
    driver.nvmlDeviceGetHandleByIndex = lambda index: f"gpu{index}"
    driver.nvmlDeviceGetP2PStatus = lambda one, other, caps: (
        0 if (one, other, caps) == ("gpu0", "gpu1", 0) else 1
    )
    assert nvml_child._peer_access(driver, 2) == [[None, 0], [1, None]]
