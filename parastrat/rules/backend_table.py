"""PyTorch's guidance on communication backends, one row per situation; the first that matches decides.

The core is the table "Which backend to use?" of the ``torch.distributed`` documentation. Rows that it
leaves out name their own source.
"""

from __future__ import annotations

from parastrat.hardware import DeviceType, FabricKind, HostSystem, NetworkKind, Vendor
from parastrat.plan import Backend
from parastrat.rules.backend_row import (
    Asked,
    BackendRow,
    device_is,
    gpus_on,
    is_cpu,
    is_gpu,
    is_infiniband,
    shares_devices,
)

_DOCS = "https://docs.pytorch.org/docs/stable/distributed.html#which-backend-to-use"
_C10D = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/distributed_c10d.py"

_GPU_INIT = "cpu:gloo,cuda:nccl"

#: the documented way out of trouble with NCCL, and its limit
_TO_GLOO = "Gloo if NCCL fails for good, loudly; never under a pipeline, which Gloo cannot run on GPUs"

_ASKED_ROWS = (
    BackendRow(
        row="ucc",
        when=lambda _: True,
        asked=Asked.UCC,
        backend=None,
        init="",
        reason="UCC is never chosen by itself: it needs a torch built with it, and torch's source marks it "
        "for removal",
        fallback="the documented backend",
        url=_C10D,
    ),
    BackendRow(
        row="torchcomms",
        when=lambda _: True,
        asked=Asked.TORCHCOMMS,
        backend=None,
        init="",
        reason="torchcomms is experimental and opt-in: its package, and "
        "TORCH_DISTRIBUTED_USE_TORCHCOMMS=1, over the same backends",
        fallback="torch's own process groups, without the variable",
        url="https://github.com/meta-pytorch/torchcomms",
    ),
    BackendRow(
        row="fake",
        when=lambda _: True,
        asked=Asked.FAKE,
        backend=None,
        init="fake",
        reason="for a dry run: every collective returns at once, so one process checks a mesh of any size "
        "and computes nothing that means anything",
        fallback="",
        url=""
        "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/testing/_internal/distributed/fake_pg.py",
    ),
    BackendRow(
        row="cpu_ibverbs",
        when=lambda hardware: is_cpu(hardware) and is_infiniband(hardware),
        asked=Asked.GLOO_IBVERBS,
        backend=Backend.GLOO,
        init="gloo",
        reason="Gloo can drive InfiniBand itself where torch was built with USE_GLOO_IBVERBS=ON; wheels "
        "are not, and answer 'unsupported gloo device'",
        fallback="Gloo over TCP, without GLOO_DEVICE_TRANSPORT",
        url="https://github.com/pytorch/pytorch/pull/153015",
    ),
    BackendRow(
        row="none",
        when=lambda _: True,
        asked=Asked.UNSTATED,
        backend=None,
        init="",
        reason="left to itself torch creates one backend for one device type; checkpoints, objects and "
        "offload then find none for CPU tensors. So the backends are written out",
        fallback="",
        url=_C10D,
    ),
)

_DEVICE_ROWS = (
    BackendRow(
        row="gpu_one",
        when=lambda hardware: hardware.world_size == 1 and not is_cpu(hardware),
        backend=None,
        init="",
        reason="one device has nobody to talk to: no process group",
        fallback="",
        url=_DOCS,
    ),
    BackendRow(
        row="cpu_one",
        when=lambda hardware: hardware.world_size == 1,
        backend=None,
        init="",
        reason="one process has nobody to talk to: no process group",
        fallback="",
        url=_DOCS,
    ),
    BackendRow(
        row="npu",
        when=device_is(DeviceType.NPU),
        backend=Backend.HCCL,
        init="cpu:gloo,npu:hccl",
        reason="Ascend devices communicate through hccl, which the torch_npu plugin registers",
        fallback="Gloo",
        url="https://github.com/Ascend/pytorch",
    ),
    BackendRow(
        row="hpu",
        when=device_is(DeviceType.HPU),
        backend=Backend.HCCL,
        init="cpu:gloo,hpu:hccl",
        reason="Gaudi devices communicate through hccl, which Habana's plugin registers",
        fallback="Gloo",
        url="https://docs.habana.ai/en/latest/PyTorch/PyTorch_Scaling_Guide/index.html",
    ),
    BackendRow(
        row="xpu",
        when=device_is(DeviceType.XPU),
        backend=Backend.XCCL,
        init="cpu:gloo,xpu:xccl",
        reason="Intel GPUs communicate through XCCL, which is in torch; CPU tensors go through Gloo",
        fallback="Gloo for CPU tensors; shard inside the node (hsdp) if flat sharding fails across nodes",
        url=_C10D,
    ),
    BackendRow(
        row="mps",
        when=lambda hardware: (
            hardware.device.type is DeviceType.MPS or hardware.host.system is HostSystem.DARWIN
        ),
        backend=Backend.GLOO,
        init="gloo",
        reason="on Apple machines Gloo is the only backend; plan one device there, and more for tests only",
        fallback="one device",
        url=_C10D,
    ),
    BackendRow(
        row="gpu_oversub",
        when=lambda hardware: is_gpu(hardware) and shares_devices(hardware),
        backend=Backend.GLOO,
        init="gloo",
        reason="NCCL refuses two ranks on one GPU (Duplicate GPU detected); Gloo runs them, to debug",
        fallback="",
        url="https://github.com/NVIDIA/Megatron-LM/issues/661",
    ),
    BackendRow(
        row="gpu_windows",
        when=lambda hardware: is_gpu(hardware) and hardware.host.system is HostSystem.WINDOWS,
        backend=Backend.GLOO,
        init="gloo",
        reason="NCCL does not exist on Windows; Gloo does",
        fallback="WSL2 with NCCL",
        url=_DOCS,
    ),
    BackendRow(
        row="rocm",
        when=lambda hardware: is_gpu(hardware) and hardware.device.vendor is Vendor.AMD,
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="AMD GPUs: torch's backend nccl is RCCL there, under the same name and most variables",
        fallback=_TO_GLOO,
        url="https://docs.pytorch.org/docs/stable/notes/hip.html",
    ),
    BackendRow(
        row="gpu_wsl",
        when=lambda hardware: is_gpu(hardware) and hardware.host.system is HostSystem.WSL2,
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="WSL2 is Linux to NCCL, without peer access and InfiniBand",
        fallback=_TO_GLOO,
        url="https://docs.nvidia.com/cuda/wsl-user-guide/index.html",
    ),
)

_GPU_ROWS = (
    BackendRow(
        row="gpu_nvl72",
        when=lambda hardware: is_gpu(hardware) and hardware.scale_up_kind is FabricKind.NVLINK_DOMAIN,
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="multi-node NVLink: NCCL reaches the whole NVLink domain, which is larger than the node",
        fallback="NCCL_MNNVL_ENABLE=0, which leaves NVLink inside the node; then stop",
        url="https://github.com/NVIDIA/nccl/blob/5067397/src/mnnvl.cc",
    ),
    BackendRow(
        row="gpu_single",
        when=lambda hardware: is_gpu(hardware) and hardware.num_nodes == 1,
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="GPUs of one node: NCCL, over NVLink or PCIe",
        fallback="NCCL_P2P_DISABLE=1 if it hangs (some boards promise peer access and lack it), then Gloo "
        "where no pipeline runs",
        url="https://github.com/NVIDIA/nccl-tests/issues/117",
    ),
    BackendRow(
        row="gpu_efa",
        when=gpus_on(NetworkKind.EFA),
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="GPUs on EFA: NCCL through the aws-ofi-nccl plugin; without it NCCL silently uses sockets",
        fallback="NCCL over sockets (ENA), at a fraction of the bandwidth",
        url="https://github.com/aws/aws-ofi-nccl",
    ),
    BackendRow(
        row="gpu_slingshot",
        when=gpus_on(NetworkKind.SLINGSHOT),
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="GPUs on Slingshot: NCCL through aws-ofi-nccl with the cxi provider",
        fallback="NCCL over sockets on the hsn interfaces",
        url="https://github.com/saforem2/ezpz",
    ),
    BackendRow(
        row="gpu_tcpx",
        when=gpus_on(NetworkKind.TCPX),
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="GPUs on GPUDirect-TCPX: NCCL through Google's plugin, whose script sets the environment",
        fallback="NCCL over plain sockets",
        url="https://github.com/AI-Hypercomputer/gpu-recipes",
    ),
    BackendRow(
        row="gpu_ib",
        when=gpus_on(NetworkKind.INFINIBAND),
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="GPUs on InfiniBand: NCCL is the only backend that has InfiniBand and GPUDirect",
        fallback="NCCL over sockets (NCCL_IB_DISABLE=1) to go on at all; then stop",
        url=_DOCS,
    ),
    BackendRow(
        row="gpu_roce",
        when=gpus_on(NetworkKind.ROCE),
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="GPUs on RoCE: NCCL drives it as it drives InfiniBand, and finds the GID itself since 2.21",
        fallback="NCCL over sockets (NCCL_IB_DISABLE=1)",
        url="https://github.com/NVIDIA/nccl/issues/769",
    ),
    BackendRow(
        row="gpu_eth",
        when=gpus_on(NetworkKind.ETHERNET, NetworkKind.WIFI),
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="GPUs on Ethernet: NCCL over sockets, still the fastest for tensors on GPUs",
        fallback=_TO_GLOO,
        url=_DOCS,
    ),
    BackendRow(
        row="gpu_unknown",
        when=is_gpu,
        backend=Backend.NCCL,
        init=_GPU_INIT,
        reason="GPUs: NCCL on every network. Which network this is, and so which plugin and which speed, "
        "is unknown",
        fallback=_TO_GLOO,
        url=_DOCS,
    ),
)

_CPU_ROWS = (
    BackendRow(
        row="cpu_one_node",
        when=lambda hardware: hardware.num_nodes == 1,
        backend=Backend.GLOO,
        init="gloo",
        reason="CPU processes of one host: Gloo; no network is involved",
        fallback="",
        url=_DOCS,
    ),
    BackendRow(
        row="cpu_ib_ipoib",
        when=lambda hardware: is_infiniband(hardware) and hardware.network.ipoib is True,
        backend=Backend.GLOO,
        init="gloo",
        reason="CPU hosts on InfiniBand with IP over it: Gloo, over that interface",
        fallback="MPI",
        url=_DOCS,
    ),
    BackendRow(
        row="cpu_ib_noipoib",
        when=lambda hardware: is_infiniband(hardware) and hardware.network.ipoib is False,
        backend=Backend.MPI,
        init="mpi",
        reason="CPU hosts on InfiniBand without IP over it: MPI, for Gloo speaks TCP alone. torch's wheels "
        "lack it, so this needs a torch built where MPI is installed",
        fallback="Gloo over Ethernet, at Ethernet's speed",
        url=_DOCS,
    ),
    BackendRow(
        row="cpu_ib_unknown",
        when=is_infiniband,
        backend=Backend.GLOO,
        init="gloo",
        reason="CPU hosts on InfiniBand, and whether IP runs over it is unknown: if so, Gloo over that "
        "interface; if not, MPI. Gloo runs either way, then over Ethernet",
        fallback="MPI",
        url=_DOCS,
        certain=False,
    ),
    BackendRow(
        row="cpu_eth",
        when=lambda hardware: (
            hardware.network.kind not in {NetworkKind.UNKNOWN, NetworkKind.NONE, NetworkKind.INFINIBAND}
        ),
        backend=Backend.GLOO,
        init="gloo",
        reason="CPU hosts on an IP network: Gloo, unless there is a specific reason for MPI",
        fallback="MPI, for a specific reason",
        url=_DOCS,
    ),
    BackendRow(
        row="cpu_unknown",
        when=lambda _: True,
        backend=Backend.GLOO,
        init="gloo",
        reason="CPU hosts on an unknown network: Gloo over whatever IP there is; with InfiniBand but no "
        "IP over it the documented choice would be MPI",
        fallback="MPI",
        url=_DOCS,
        certain=False,
    ),
)

#: the table; the order decides
ROWS: tuple[BackendRow, ...] = (*_ASKED_ROWS, *_DEVICE_ROWS, *_GPU_ROWS, *_CPU_ROWS)
