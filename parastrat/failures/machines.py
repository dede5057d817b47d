"""What ends a job for want of memory, or for how a node, a container or an installation is set up."""

from __future__ import annotations

from parastrat.failures.failure import AS_SEEN, GUIDE, NCCL, TORCH, Blames, Failure, known

_LESS = (
    "see where a plan's memory goes with `parastrat explain plan.toml`, plan with a smaller --micro-batch, "
    "--recompute full or more sharding, and keep other processes off the device"
)
#: the more is said, the earlier
MACHINES: tuple[Failure, ...] = (
    known(
        Blames.MEMORY,
        r"OutOfMemoryError|out of memory|Cuda failure 2 |CUBLAS_STATUS_ALLOC_FAILED|"
        r"CUDNN_STATUS_ALLOC_FAILED",
        "the device has no memory left",
        _LESS,
        TORCH + "c10/cuda/CUDACachingAllocator.cpp",
    ),
    known(
        Blames.SETUP,
        r"failed to extend \S+ to \d+ bytes|Error while creating shared memory segment|"
        r"workers are out of shared memory|unable to write to file </torch_|Bus error",
        "shared memory, /dev/shm, is too small for ranks and loader workers",
        "give the container more: docker --shm-size=16g or --ipc=host, in Kubernetes an emptyDir with "
        "medium: Memory on /dev/shm",
        NCCL + "src/os/linux.cc",
    ),
    known(
        Blames.SETUP,
        r"unlink shared memory /dev/shm/nccl-\S+ failed",
        "the system removed NCCL's shared memory when a session of the user ended",
        "set RemoveIPC=no in /etc/systemd/logind.conf",
        GUIDE + "troubleshooting.html",
    ),
    known(
        Blames.SETUP,
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU/Partition",
        "two ranks use one GPU",
        "start no more ranks on a node than it has GPUs, and let each take cuda:LOCAL_RANK, as "
        "auto_parallelize does; look for a CUDA_VISIBLE_DEVICES that hides some",
        NCCL + "src/init.cc",
    ),
    known(
        Blames.SETUP,
        r"Mismatched NCCL version detected",
        "ranks run different versions of NCCL",
        "use the same image, or the same environment, on all nodes",
        NCCL + "src/init.cc",
    ),
    known(
        Blames.SETUP,
        r"Failed to initialize any NET plugin",
        "NCCL_NET asks for a network plugin that is not installed",
        "unset NCCL_NET, or install the plugin and add it to LD_LIBRARY_PATH",
        NCCL + "src/plugin/net.cc",
    ),
    known(
        Blames.SETUP,
        r"Call to ibv_(?:reg_mr|reg_dmabuf_mr|create_qp|create_cq)\w* failed",
        "the limit of locked memory is too low for RDMA",
        "ulimit -l unlimited, LimitMEMLOCK=infinity of the service, or docker --ulimit memlock=-1",
        GUIDE + "troubleshooting.html",
    ),
    known(
        Blames.MEMORY,
        r"DefaultCPUAllocator: can't allocate memory|std::bad_alloc|Cannot allocate memory|"
        r"^MemoryError|Out of memory: Killed process|oom-kill|OOM Killed|OOMKilled",
        "the host has no memory left",
        "build the model in a function that auto_parallelize calls (no rank then holds it whole), use "
        "fewer loader workers, or raise the container's memory limit",
        TORCH + "c10/core/impl/alloc_cpu.cpp",
    ),
    known(
        Blames.DEVICE,
        r"Cuda failure 800 'operation not permitted'",
        "the process may not write to the channels that join the GPUs of several nodes by NVLink",
        "mount a channel of /dev/nvidia-caps-imex-channels into the container, or set NCCL_MNNVL_ENABLE=0",
        GUIDE + "env.html",
    ),
    known(
        Blames.DEVICE,
        r"MNNVL .*available but not working",
        "NVLink between nodes is there, and its IMEX domain is not up",
        "start nvidia-imex on all nodes of the domain, or set NCCL_MNNVL_ENABLE=0",
        NCCL + "src/mnnvl.cc",
    ),
    known(
        Blames.DEVICE,
        r"system not yet initialized",
        "the node has NVSwitches, and nothing has set them up",
        "systemctl start nvidia-fabricmanager, of the driver's version",
        "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    known(
        Blames.DEVICE,
        r"Failed to open libnvidia-ml\.so\.1|Found no NVIDIA driver on your system",
        "the driver's libraries are not in the container",
        "start it with --gpus all, or with nvidia-container-toolkit's runtime",
        NCCL + "src/misc/nvmlwrap.cc",
    ),
    known(
        Blames.SETUP,
        r"Torch not compiled with CUDA enabled|Distributed package doesn't have NCCL built in",
        "this torch was built for processors alone",
        "install the build for your CUDA: https://pytorch.org/get-started/locally",
        AS_SEEN,
    ),
    known(
        Blames.SETUP,
        r"no kernel image is available for execution on the device",
        "this torch has no kernels for this GPU",
        "install a build that has: torch.cuda.get_arch_list() lists what this one knows",
        TORCH + "c10/cuda/CUDAException.cpp",
    ),
    known(
        Blames.DEVICE,
        r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        "the plan is for GPUs, and this process sees none",
        "check CUDA_VISIBLE_DEVICES and the container's devices, or plan with --on auto here",
        TORCH + "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
)
