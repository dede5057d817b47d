from __future__ import annotations

from builders import case, codes, cpu_hosts

from parastrat.assess import columns_of
from parastrat.hardware import DeviceType, HostSystem, NetworkKind
from parastrat.plan import Backend, Offload
from parastrat.rules import findings_of


def test_nccl_without_gpus() -> None:
    assert "PS301" in codes(**cpu_hosts(backend=Backend.NCCL))
    assert "PS301" not in codes(**cpu_hosts(backend=Backend.GLOO))
    assert "PS301" not in codes(**cpu_hosts(backend=Backend.NCCL, dp_replicate=1, num_nodes=1))
    assert "PS301" not in codes(dp_replicate=2)


def test_gloo_for_gpus() -> None:
    assert "PS302" in codes(backend=Backend.GLOO, dp_replicate=2)
    assert "PS302" not in codes(backend=Backend.GLOO)
    assert "PS302" not in codes(backend=Backend.NCCL, dp_replicate=2)
    assert "PS302" not in codes(**cpu_hosts())


def test_gloo_for_gpus_says_why_where_it_is_the_table_that_chooses_it() -> None:
    made = case(backend=Backend.GLOO, dp_replicate=2, host_system=HostSystem.WINDOWS)
    (finding,) = (f for f in findings_of(made, columns_of(made)) if f.code == "PS302")
    assert "NCCL does not exist on Windows" in finding.message
    assert finding.fix == "WSL2 with NCCL"


def test_pipeline_over_gloo() -> None:
    assert "PS303" in codes(pp=2, backend=Backend.GLOO)
    assert "PS303" not in codes(dp_replicate=2, backend=Backend.GLOO)
    assert "PS303" not in codes(pp=2, backend=Backend.NCCL)
    assert "PS303" not in codes(**cpu_hosts(pp=2, dp_replicate=1))


def test_backend_of_other_devices() -> None:
    def wrong(backend: Backend, device_type: DeviceType, ranks: int = 2) -> bool:
        return "PS304" in codes(backend=backend, device_type=device_type, dp_replicate=ranks)

    assert wrong(Backend.NCCL, DeviceType.XPU)
    assert not wrong(Backend.NCCL, DeviceType.CUDA)
    assert not wrong(Backend.NCCL, DeviceType.CPU)
    assert wrong(Backend.XCCL, DeviceType.CUDA)
    assert not wrong(Backend.XCCL, DeviceType.XPU)
    assert wrong(Backend.HCCL, DeviceType.CUDA)
    assert not wrong(Backend.HCCL, DeviceType.HPU)
    assert not wrong(Backend.HCCL, DeviceType.NPU)
    assert wrong(Backend.MPI, DeviceType.CUDA)
    assert not wrong(Backend.MPI, DeviceType.CPU)
    assert not wrong(Backend.XCCL, DeviceType.CUDA, ranks=1)


def test_several_apple_devices() -> None:
    assert "PS305" in codes(device_type=DeviceType.MPS, backend=Backend.GLOO, dp_replicate=2)
    assert "PS305" not in codes(device_type=DeviceType.MPS, backend=Backend.GLOO)
    assert "PS305" not in codes(dp_replicate=2)


def test_mpi_is_not_in_wheels() -> None:
    assert "PS306" in codes(**cpu_hosts(ipoib=False, backend=Backend.MPI, launch_backend="mpi"))
    assert "PS306" not in codes(**cpu_hosts(ipoib=True))
    assert "PS306" not in codes(**cpu_hosts(backend=Backend.MPI, dp_replicate=1, num_nodes=1))


def test_documented_backend_is_open() -> None:
    assert "PS307" in codes(**cpu_hosts(ipoib=None))
    assert "PS307" not in codes(**cpu_hosts(ipoib=False))


def test_gloo_beside_infiniband() -> None:
    assert "PS308" in codes(**cpu_hosts(ipoib=False))
    assert "PS308" not in codes(**cpu_hosts(ipoib=False, backend=Backend.MPI))
    assert "PS308" not in codes(**cpu_hosts(ipoib=True))


def test_gloo_beside_infiniband_names_the_interface() -> None:
    made = case(**cpu_hosts(ipoib=False, socket_ifname="eno1"))
    (finding,) = (f for f in findings_of(made, columns_of(made)) if f.code == "PS308")
    assert "runs over eno1" in finding.message


def test_no_backend_for_cpu_tensors() -> None:
    assert "PS309" in codes(dp_replicate=2, launch_backend="nccl")
    assert "PS309" not in codes(dp_replicate=2, launch_backend="cpu:gloo,cuda:nccl")
    assert "PS309" not in codes(dp_replicate=2, launch_backend="gloo")
    assert "PS309" not in codes(dp_replicate=2, launch_backend="")
    assert "PS309" not in codes(launch_backend="nccl")
    assert "PS309" not in codes(**cpu_hosts(launch_backend="mpi"))


def test_offload_without_cpu_backend() -> None:
    assert "PS310" in codes(dp_shard=2, offload=Offload.OPTIMIZER, launch_backend="nccl")
    assert "PS310" not in codes(dp_shard=2, offload=Offload.OPTIMIZER)
    assert "PS310" not in codes(dp_shard=2, launch_backend="nccl")
    assert "PS310" not in codes(offload=Offload.OPTIMIZER, launch_backend="nccl")


def test_backend_is_left_out() -> None:
    assert "PS311" in codes(dp_replicate=2, launch_backend="")
    assert "PS311" not in codes(dp_replicate=2)
    assert "PS311" not in codes()


def test_backend_has_no_such_name() -> None:
    assert "PS312" in codes(dp_replicate=2, launch_backend="cpu:gloo,cuda:ncccl")
    assert "PS312" not in codes(dp_replicate=2, launch_backend="cpu:gloo,cuda:nccl")
    assert "PS312" not in codes(launch_backend="")


def test_backend_is_not_for_training() -> None:
    assert "PS313" in codes(dp_replicate=2, launch_backend="ucc")
    assert "PS313" in codes(dp_replicate=2, launch_backend="fake")
    assert "PS313" not in codes(dp_replicate=2)


def test_network_kind_does_not_matter_to_one_host() -> None:
    assert codes(dp_replicate=2, network=NetworkKind.UNKNOWN) == codes(dp_replicate=2)
