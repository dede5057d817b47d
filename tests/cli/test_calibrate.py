"""``parastrat calibrate`` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parastrat import calibration
from parastrat.calibration import Operation, Wanted
from parastrat.cli.main import main
from parastrat.hardware import Hardware
from parastrat.parse.hardware_file import read_hardware_file
from parastrat.profiles import load_hardware
from parastrat.workload import Precision


@pytest.fixture(autouse=True)
def few_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(hardware: Hardware) -> tuple[Wanted, ...]:
        sides = [(size,) * 3 for size in (96, 64, 32)]
        several = [
            *(Wanted(operation=Operation.MATMUL, sides=each) for each in sides),
            Wanted(operation=Operation.MATMUL, precision=Precision.BF16, sides=(64,) * 3),
            Wanted(operation=Operation.COPY, bytes=1 << 20),
            Wanted(operation=Operation.LAUNCH),
            Wanted(operation=Operation.ATTENTION, sides=(64,)),
        ]
        if hardware.devices_per_node > 1:
            several += [
                Wanted(operation=each, bytes=size)
                for each in Operation
                if each.is_collective
                for size in (4096, 1 << 20)
            ]
            several.append(Wanted(operation=Operation.MAKE, bytes=1 << 20))
        return tuple(several)

    def alone(hardware: Hardware) -> tuple[Wanted, ...]:
        if hardware.devices_per_node == 1:
            return ()
        return (
            Wanted(operation=Operation.MATMUL, sides=(192, 96, 96)),
            Wanted(operation=Operation.MAKE, bytes=2 << 20),
        )

    monkeypatch.setattr(calibration, "wanted", few)
    monkeypatch.setattr(calibration, "wanted_alone", alone)


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    return int(left.value.code or 0)


def test_a_plan_rests_on_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "host.toml"
    assert ended("calibrate", "--ranks-per-node", "2", "-o", str(path)) == 0
    out = capsys.readouterr().out
    for told in (
        "fp32 products",
        "memory, read and written",
        "link, all-gather",
        "reduce-scatter",
        "memory of one process alone",
        str(path),
    ):
        assert told in out
    hardware = read_hardware_file(path)
    assert hardware.devices_per_node == 2
    assert 0 < (hardware.device.whole_memory or 0) <= 1
    assert "parastrat calibrate" in {e.field: e for e in hardware.device.provenance}["matmul"].source
    assert ended("recommend", "gpt2", "--on", str(path), "--json") in (0, 1)
    assert json.loads(capsys.readouterr().out)["hardware"]["device"]["launch_s"] == hardware.device.launch_s
    # its own number of processes says nothing new, and of another nothing was measured
    assert load_hardware(str(path), ranks_per_node=2) == hardware
    assert ended("recommend", "gpt2", "--on", str(path), "--ranks-per-node", "4") == 2
    assert "was measured with 2 processes a host, not 4" in capsys.readouterr().err


def test_json_has_figures_timings_and_the_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("calibrate", "--ranks-per-node", "1", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "parastrat.calibration/1"
    assert len(answer["timings"]) == 7
    assert {figure["field"] for figure in answer["figures"]} >= {"device.sustained.fp32", "device.launch_s"}
    assert answer["hardware"]["scale_up"] is None


def test_another_machine_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("calibrate", "--on", "dgx-h100") == 2
    assert "only this one can be measured" in capsys.readouterr().err


def test_somebodys_file_is_not_replaced_and_nothing_is_measured_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.toml"
    path.write_text("mine = true\n", encoding="utf-8")
    monkeypatch.setattr("parastrat.runtime.measuring.measure", None)
    assert ended("calibrate", "-o", str(path)) == 2
    assert "is no hardware file" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine = true\n"
