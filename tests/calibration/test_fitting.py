"""Figures that made times are found again from those times."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from parastrat.calibration import (
    Calibration,
    Machinery,
    Operation,
    Timing,
    Wanted,
    calibrated,
    wanted,
    wanted_alone,
)
from parastrat.errors import ProbeError
from parastrat.hardware import AttentionCurve, FigureKind, Hardware
from parastrat.profiles import load_hardware
from parastrat.workload import Precision

RANKS = 4
MACHINERY = Machinery(ranks=RANKS, threads=2, software="torch 2.13.0", date="2026-11-22")
#: what the made-up host does
RATE, M_HALF, N_HALF, K_HALF = 50e9, 20.0, 40.0, 80.0
MAKE_RATE = 1e9
BF16_RATE, COPY_RATE, LAUNCH_S, ATTENTION = 30e9, 6e9, 4e-6, 0.3
LINK, HOP_S, GAIN = 2e9, 5e-5, 1.5


def seconds(each: Wanted) -> float:
    """Times of that host, by the formulas of the cost model."""
    shares = (RANKS - 1) / RANKS * each.bytes
    match each.operation:
        case Operation.MATMUL:
            m, n, k = each.sides
            reached = m / (m + M_HALF) * n / (n + N_HALF) * k / (k + K_HALF)
            rate = RATE if each.precision is Precision.FP32 else BF16_RATE
            return 2 * m * n * k / (rate * reached)
        case Operation.MAKE:
            return each.bytes / MAKE_RATE
        case Operation.COPY:
            return 2 * each.bytes / COPY_RATE
        case Operation.LAUNCH:
            return LAUNCH_S
        case Operation.ATTENTION:
            return 4 * 1024**2 * 8 * 64 / 2 / (ATTENTION * largest_rate())
        case Operation.ALL_REDUCE:
            return 2 * (RANKS - 1) * HOP_S + 2 * shares / (LINK * GAIN)
        case _:
            return (RANKS - 1) * HOP_S + shares / LINK


def largest_rate() -> float:
    return RATE * 1024**3 / ((1024 + M_HALF) * (1024 + N_HALF) * (1024 + K_HALF))


def host() -> Hardware:
    base = load_hardware("cpu:1", ranks_per_node=1)
    links = load_hardware("8x-rtx-4090:1")
    return replace(base, devices_per_node=RANKS, scale_up_devices=RANKS, scale_up=links.scale_up)


def found(hardware: Hardware | None = None) -> Calibration:
    hardware = hardware or host()
    timings = [
        Timing(wanted=each, seconds=seconds(each), spread=0.01, repeats=7) for each in wanted(hardware)
    ]
    return calibrated(hardware, timings, MACHINERY)


def test_products_give_rate_and_curve() -> None:
    device = found().hardware.device
    assert device.sustained.fp32 == pytest.approx(largest_rate())
    assert device.matmul.ceiling * (device.sustained.fp32 or 0) == pytest.approx(RATE, rel=0.01)
    halves = (device.matmul.m_half, device.matmul.n_half, device.matmul.k_half)
    assert halves == (
        pytest.approx(M_HALF, rel=0.05),
        pytest.approx(N_HALF, rel=0.05),
        pytest.approx(K_HALF, rel=0.05),
    )


def test_one_time_gives_one_figure() -> None:
    device = found().hardware.device
    bf16 = Wanted(operation=Operation.MATMUL, precision=Precision.BF16, sides=(1024,) * 3)
    assert device.sustained.bf16 == pytest.approx(2 * 1024**3 / seconds(bf16))
    assert device.memory_bytes_per_s == pytest.approx(COPY_RATE)
    assert device.launch_s == LAUNCH_S
    assert device.attention_efficiency == pytest.approx(ATTENTION)
    # a byte that is made is read and written as well
    beside = 2 / COPY_RATE
    assert beside + 1 / (device.fresh_bytes_per_s or 1) == pytest.approx(1 / MAKE_RATE)


def test_collectives_give_the_link() -> None:
    link = found().hardware.scale_up
    assert link is not None
    assert link.bytes_per_s == pytest.approx(LINK, rel=0.01)
    assert link.latency_s == pytest.approx(HOP_S, rel=0.01)
    # the largest buffer's: hops are a little of it
    assert link.all_reduce_gain == pytest.approx(GAIN, rel=0.05)


def test_one_process_has_no_link() -> None:
    alone = replace(host(), devices_per_node=1, scale_up_devices=1, scale_up=None)
    calibration = found(alone)
    assert calibration.hardware.scale_up is None
    assert not [fit for fit in calibration.fits if fit.field.startswith("scale_up")]
    assert not [each for each in calibration.timings if each.wanted.operation.is_collective]


def test_what_was_measured_says_so_and_what_was_not_stays() -> None:
    before, after = host().device, found().hardware.device
    known = {entry.field: entry for entry in after.provenance}
    measured = {field for field, entry in known.items() if "parastrat calibrate" in entry.source}
    assert measured == {
        "sustained.fp32",
        "sustained.bf16",
        "memory_bytes_per_s",
        "launch_s",
        "attention_efficiency",
        "fresh_bytes_per_s",
        "matmul",
    }
    assert all(known[field].kind is FigureKind.MEASURED for field in measured)
    assert "2026-11-22: torch 2.13.0, 4 processes at once, 2 threads each" in known["matmul"].source
    # the rate of both formats was stated at once
    assert "sustained" not in known
    kept = {entry for entry in before.provenance if entry.field in known} & set(after.provenance)
    assert {entry.field for entry in kept} == {
        "memory_bytes",
        "usable_memory_bytes",
        "peak.fp32",
        "peak.bf16",
    }


def test_attention_is_told_of_the_shape_that_its_curve_is_relative_to() -> None:
    base = host()
    curve = AttentionCurve(keys_half=512, rows_half=8192, width_half=64)
    curved = replace(base, device=replace(base.device, attention=curve))
    plain, found_ = (found(each).hardware.device.attention_efficiency for each in (base, curved))
    # timed of 512 keys, 8,192 rows and 64 wide; the reference's are 4,096, 2^20 and 128
    reference = (1 + 512 / 4096) * (1 + 8192 / 2**20) * (1 + 64 / 128)
    assert found_ == pytest.approx(plain * 2**3 / reference)


def test_no_peak_lies_below_what_was_reached() -> None:
    slow = replace(
        host(), device=replace(host().device, peak=replace(host().device.peak, fp32=1e9, bf16=1e12))
    )
    device = found(slow).hardware.device
    assert device.peak.fp32 == pytest.approx(device.matmul.ceiling * (device.sustained.fp32 or 0))
    assert device.peak.fp32 == pytest.approx(RATE, rel=0.01)
    assert device.peak.bf16 == 1e12


def test_fits_tell_before_after_and_how_far_off() -> None:
    fits = {fit.field: fit for fit in found().fits}
    memory = fits["device.memory_bytes_per_s"]
    assert memory.before == host().device.memory_bytes_per_s
    assert memory.kind is FigureKind.ASSUMED
    assert (memory.after, memory.error) == (pytest.approx(COPY_RATE), 0.01)
    assert fits["device.sustained.fp32"].error < 0.01
    assert fits["scale_up.bytes_per_s"].error < 0.01


def test_a_slow_outlier_moves_a_link_little() -> None:
    hardware = host()
    slow = [
        Timing(wanted=each, seconds=seconds(each) * (5 if place == 40 else 1), spread=0.01, repeats=7)
        for place, each in enumerate(wanted(hardware))
    ]
    link = calibrated(hardware, slow, MACHINERY).hardware.scale_up
    assert link is not None
    assert abs(math.log(link.bytes_per_s / LINK)) < 0.1


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ProbeError, match="no matmul was measured"):
        calibrated(host(), [], MACHINERY)


def test_a_gpu_is_measured_in_bf16_with_uploads() -> None:
    several = wanted(load_hardware("dgx-h100:1"))
    assert several[0] == Wanted(operation=Operation.MATMUL, precision=Precision.BF16, sides=(8192,) * 3)
    assert Operation.UPLOAD in {each.operation for each in several}
    assert {each.operation for each in several if each.operation.is_collective} == {
        each for each in Operation if each.is_collective
    }


def test_one_process_with_all_cores_is_held_against_all_of_them() -> None:
    several = wanted_alone(host())
    # as much as all processes do together, in one and a quarter times as long
    alone = [
        Timing(
            wanted=each,
            seconds=1.25 * seconds(replace(each, sides=(1024,) * 3, bytes=each.bytes // RANKS)),
            spread=0.02,
            repeats=7,
        )
        for each in several
    ]
    timings = [
        Timing(wanted=each, seconds=seconds(each), spread=0.01, repeats=7) for each in wanted(host())
    ]
    calibration = calibrated(host(), timings, MACHINERY, alone)
    device = calibration.hardware.device
    assert device.whole_products == device.whole_memory == pytest.approx(0.8)
    fits = {fit.field: fit for fit in calibration.fits}
    assert fits["device.whole_memory"].error == 0.02
    assert {entry.field: entry.kind for entry in device.provenance}["whole_memory"] is FigureKind.MEASURED
    # one process alone, and devices that compute, have nothing to be held against
    assert not wanted_alone(replace(host(), devices_per_node=1))
    assert not wanted_alone(load_hardware("8x-rtx-4090:1"))
    assert found().hardware.device.whole_memory is None
