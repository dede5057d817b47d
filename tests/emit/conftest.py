"""Cases with made-up numbers, and goldens.

``UPDATE_GOLDENS=1 pytest tests/emit`` writes the files under ``golden/`` anew; read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parastrat.case import Case
from parastrat.estimate import Estimate, MemoryEstimate, TimeEstimate
from parastrat.hardware import (
    Device,
    DeviceType,
    FabricKind,
    FigureKind,
    Hardware,
    Host,
    Link,
    MatmulCurve,
    Network,
    NetworkKind,
    Provenance,
    Rates,
    Vendor,
)
from parastrat.launch import Launch
from parastrat.plan import Backend, Mesh, Plan, Shard
from parastrat.workload import Optimizer, Precision, Workload

GOLDEN = Path(__file__).parent / "golden"

GPU = Device(
    name="h100-sxm5",
    vendor=Vendor.NVIDIA,
    type=DeviceType.CUDA,
    memory_bytes=85_520_809_984,
    usable_memory_bytes=84_000_000_000,
    memory_bytes_per_s=3.35e12,
    peak=Rates(bf16=989e12, fp16=989e12),
    sustained=Rates(bf16=660e12),
    matmul=MatmulCurve(ceiling=1.0, m_half=100.0, n_half=100.0, k_half=100.0),
    bf16_native=True,
    launch_s=4e-6,
    compute_capability="9.0",
    provenance=(Provenance(field="sustained", kind=FigureKind.MEASURED, source="a test"),),
)
CPU = replace(GPU, name="cpu", vendor=Vendor.CPU, type=DeviceType.CPU, compute_capability=None)

ESTIMATE = Estimate(
    memory=MemoryEstimate(
        parameters=1, gradients=2, optimizer=3, activations=4, transient=5, overhead=6,
        capacity=84_000_000_000, margin=7,
    ),
    time=TimeEstimate(
        compute=1.5, tp_exposed=0.1, cp_exposed=0.0, ep_exposed=0.0, dp_exposed=0.2, pp_bubble=0.0,
        pp_exposed=0.0, optimizer=0.3, step_low=1.9, step_high=2.4,
    ),
    tokens_per_s_per_gpu=1234.5,
    model_tflops_per_gpu=400.25,
    mfu=0.41,
)  # fmt: skip


def make_case(*, nodes: int = 1, ranks: int = 8, device: Device = GPU, **fields: Any) -> Case:
    """One case; ``fields`` are the plan's, by default FSDP2 over all ranks."""
    is_gpu = device.type is DeviceType.CUDA
    pp = fields.get("mesh", Mesh()).pp
    workload = Workload(
        global_batch_size=nodes * ranks,
        sequence_length=4096,
        optimizer=Optimizer.ADAMW,
        precision=fields.get("precision", Precision.BF16_MIXED),
        assumed=("optimizer",),
    )
    plan = Plan(
        **{
            "mesh": Mesh(dp_shard=nodes * ranks),
            "micro_batch_size": 1,
            # what every schedule takes
            "gradient_accumulation_steps": 1 if pp == 1 else 2 * pp,
            "precision": workload.precision,
            "backend": Backend.NCCL if is_gpu else Backend.GLOO,
            "shard": Shard.PARAMETERS,
            **fields,
        }
    )
    link = Link(nominal_bytes_per_s=5e10, bytes_per_s=4e10, latency_s=1e-5)
    return Case(
        model=SimpleNamespace(  # type: ignore[arg-type]
            ref="llama-3.1-8b",
            parameters=8_030_261_248,
            layers=32,
            changing_buffers=False,
            routed=False,
            divides_sequences=True,
        ),
        hardware=Hardware(
            name=f"dgx-h100:{nodes}",
            device=device,
            devices_per_node=ranks,
            num_nodes=nodes,
            scale_up_devices=ranks,
            scale_up_kind=FabricKind.NVSWITCH,
            scale_up=link,
            scale_out=link if nodes > 1 else None,
            host=Host(cores=112),
            network=Network(kind=NetworkKind.INFINIBAND, compute_hcas=("mlx5_0", "mlx5_1")),
        ),
        workload=workload,
        stack=SimpleNamespace(name="torch"),  # type: ignore[arg-type]
        plan=plan,
        estimate=ESTIMATE,
        launch=Launch(
            nodes=nodes,
            ranks_per_node=ranks,
            backend="cpu:gloo,cuda:nccl" if is_gpu else "cpu:gloo",
            device=device.type.value,
            env={"OMP_NUM_THREADS": "14", "NCCL_SOCKET_IFNAME": "eth0"},
        ),
    )


@pytest.fixture
def case_of() -> Callable[..., Case]:
    return make_case


@pytest.fixture
def cpu_device() -> Device:
    return CPU


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare a text with a golden file, or write it (see the module's docstring)."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDENS"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text

    return compare
