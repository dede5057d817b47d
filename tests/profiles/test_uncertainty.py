"""The stated uncertainty of figures: one for each kind, and its reasons hold."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from statistics import median

import pytest
from builders import case

from parastrat.case import Facts
from parastrat.cost.uncertainty import time_spread
from parastrat.hardware import FigureKind, Provenance
from parastrat.profiles import device_names, node_names, profiles_root
from parastrat.profiles.files import ProfileFile, read_profile

STATED = tomllib.loads((profiles_root() / "uncertainty.toml").read_text(encoding="utf-8"))
FACTORS = {kind: entry["factor"] for kind, entry in STATED["kinds"].items()}


def shares(files: list[ProfileFile], nominal: str, reached: str) -> list[float]:
    """Rates as shares of the nominal one, where they were measured."""
    found = []
    for file in files:
        section, _, name = reached.rpartition(".")
        if name in file.section(section) and file.figure(reached).kind is FigureKind.MEASURED:
            found.append(file.number(reached) / file.number(nominal))
    return found


def profile(folder: str, name: str) -> ProfileFile:
    file = read_profile(folder, name)
    assert file is not None
    return file


DEVICES = [profile("devices", name) for name in device_names() if name != "cpu"]
NODES = [profile("nodes", name) for name in node_names() if name != "cpu"]


def test_every_kind_has_a_factor_and_a_reason() -> None:
    assert set(FACTORS) == {kind.value for kind in FigureKind}
    assert 1 < FACTORS["measured"] < FACTORS["derived"] < FACTORS["assumed"]
    assert all(entry["reason"] for table in STATED.values() for entry in table.values())


def test_measured_is_what_the_curves_miss() -> None:
    curves = [
        tomllib.loads(path.read_text(encoding="utf-8"))
        for path in (profiles_root() / "curves").glob("*.toml")
    ]
    errors = [curve["error_percent"] / 100 for curve in curves]
    assert FACTORS["measured"] - 1 == pytest.approx(median(errors), abs=0.005)


@pytest.mark.parametrize(
    ("files", "nominal", "reached"),
    [
        (
            [file for file in DEVICES if file.text("vendor") == vendor],
            "peak_tflops.bf16",
            "sustained_tflops.bf16",
        )
        for vendor in ("nvidia", "amd")
    ]
    + [(NODES, f"{link}.nominal_gb_per_s", f"{link}.gb_per_s") for link in ("scale_up", "scale_out")],
    ids=["nvidia", "amd", "scale-up", "scale-out"],
)
def test_derived_covers_the_shares_that_measured_things_reach(
    files: list[ProfileFile], nominal: str, reached: str
) -> None:
    found = shares(files, nominal, reached)
    assert len(found) >= 3
    assert 1.1 < max(found) / min(found) <= FACTORS["derived"]


def test_assumed_is_as_wide_as_a_steps_interval() -> None:
    sample = case()

    def spread(*provenance: Provenance) -> float:
        device = replace(sample.hardware.device, provenance=provenance)
        facts = Facts(
            model=sample.model,
            hardware=replace(sample.hardware, device=device),
            workload=sample.workload,
            stack=replace(sample.stack, time_spread=0.0),
        )
        return time_spread(facts)

    assumed = Provenance(field="sustained.bf16", kind=FigureKind.ASSUMED, source="")
    assert spread(replace(assumed, kind=FigureKind.MEASURED)) == 0
    assert math.exp(spread(assumed)) == pytest.approx(FACTORS["assumed"])
