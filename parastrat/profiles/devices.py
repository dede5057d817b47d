"""Device profiles to hardware values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parastrat.hardware import (
    AttentionCurve,
    Device,
    DeviceType,
    FigureKind,
    MatmulCurve,
    Provenance,
    Rates,
    Vendor,
)
from parastrat.profiles.files import ProfileFile, read_profile
from parastrat.units import GB, GIB, MIB, MICRO, TERA, scaled

#: profile key -> field of the type and the factor from the file's unit to SI
Fields = Mapping[str, tuple[str, float]]

_DEVICE: Fields = {
    "memory_mib": ("memory_bytes", MIB),
    "usable_memory_gib": ("usable_memory_bytes", GIB),
    "memory_gb_per_s": ("memory_bytes_per_s", GB),
    "host_gb_per_s": ("host_bytes_per_s", GB),
    "launch_us": ("launch_s", MICRO),
    "attention_efficiency": ("attention_efficiency", 1.0),
    "newest_attention_efficiency": ("newest_attention_efficiency", 1.0),
    "first_attention_efficiency": ("first_attention_efficiency", 1.0),
    "flex_attention_efficiency": ("flex_attention_efficiency", 1.0),
    "power_w": ("power_w", 1.0),
}
_NOT_EVERYWHERE = frozenset(
    {"power_w", "host_gb_per_s", *(f"{kind}_attention_efficiency" for kind in ("newest", "first", "flex"))}
)
_RATES: Fields = {name: (name, TERA) for name in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")}
_COUNTS = frozenset({"memory_bytes", "usable_memory_bytes", "cores", "numa_nodes"})


def read_values(
    file: ProfileFile, section: str, known: Fields
) -> tuple[dict[str, Any], tuple[Provenance, ...]]:
    """Return a section's figures as field values in SI units, and where they come from.

    Raises:
        ProfileError: for a key that the section does not have, or a figure without kind or source.
    """
    values: dict[str, Any] = {}
    provenance = []
    for key in file.section(section):
        if key in known:
            field, factor = known[key]
            number = scaled(file.number(f"{section}.{key}"), factor)
            values[field] = round(number) if field in _COUNTS else number
            provenance.append(file.figure(f"{section}.{key}").provenance(field))
    return values, tuple(provenance)


def _require(file: ProfileFile, section: str, known: Fields, optional: frozenset[str]) -> None:
    """Refuse a section with a key that is unknown, or without one that is needed."""
    keys = file.section(section).keys()
    for key in sorted(known.keys() - optional - keys):
        raise file.error(f"{section}.{key} is missing")
    for key in sorted(keys - known.keys()):
        raise file.error(f"unknown key {section}.{key}")


def read_device(file: ProfileFile) -> Device:
    """Make an accelerator of its profile and its curve.

    Raises:
        ProfileError: for a profile that is incomplete.
    """
    _require(file, "figures", _DEVICE, _NOT_EVERYWHERE)
    for section in ("peak_tflops", "sustained_tflops"):
        _require(file, section, _RATES, frozenset(_RATES) - {"fp16"})
    values, provenance = read_values(file, "figures", _DEVICE)
    peak, peak_provenance = read_values(file, "peak_tflops", _RATES)
    sustained, sustained_provenance = read_values(file, "sustained_tflops", _RATES)
    curve, curve_provenance = _read_curve(file)
    second, newest = _attention_curves(file)
    return Device(
        name=file.text("name"),
        vendor=Vendor(file.text("vendor")),
        type=DeviceType(file.text("type")),
        compute_capability=file.table.get("compute_capability"),
        bf16_native=bool(file.table.get("bf16_native")),
        peak=Rates(**peak),
        sustained=Rates(**sustained),
        matmul=curve,
        attention=second,
        newest_attention=newest,
        **_unaligned(file.table.get("compute_capability")),
        provenance=(
            *provenance,
            *(replace(entry, field=f"peak.{entry.field}") for entry in peak_provenance),
            *(replace(entry, field=f"sustained.{entry.field}") for entry in sustained_provenance),
            curve_provenance,
        ),
        **values,
    )


def _read_curve(device: ProfileFile) -> tuple[MatmulCurve, Provenance]:
    """Return the curve that a device's profile names, as ``scripts/fit_matmul.py`` wrote it."""
    name = device.text("curve")
    file = read_profile("curves", name)
    if file is None:
        raise device.error(f"curve {name!r} is not in profiles/curves")
    sides = {key: file.section("matmul").get(key) for key in ("ceiling", "m_half", "n_half", "k_half")}
    absent = [key for key, value in sides.items() if not isinstance(value, int | float)]
    if absent:
        raise file.error(f"matmul.{absent[0]} is missing")
    source = (
        f"{file.text('source')}; {file.text('gpu')}, {file.table.get('rows')} kernels, "
        f"error {file.table.get('error_percent')} %; divided by {file.number('long_run_factor')}: "
        f"{file.figure('long_run_factor').source}"
    )
    curve = MatmulCurve(**{key: float(value or 0) for key, value in sides.items()})
    kind = FigureKind.DERIVED
    if "curve_assumed" in device.table:  # another device's kernels
        kind, source = FigureKind.ASSUMED, f"{device.text('curve_assumed')}; {source}"
    return curve, Provenance(field="matmul", kind=kind, source=source)


def _unaligned(capability: Any) -> dict[str, Any]:
    """Return how many times as long products take that are less aligned; nothing where nobody stated it."""
    file = read_profile(".", "unaligned")
    if file is None or capability not in file.table:
        return {}
    return {f"aligned_to_{size}": file.number(f"{capability}.{size}_bytes") for size in ("four", "two")}


def _attention_curves(device: ProfileFile) -> tuple[AttentionCurve, AttentionCurve | None]:
    """Return how attention approaches its rates on a device, as ``scripts/fit_attention.py`` wrote it."""
    name = device.text("curve")
    file = read_profile("attention", name)
    if file is None:
        raise device.error(f"curve {name!r} is not in profiles/attention")
    newest = _attention_curve(file, "newest") if "newest" in file.table else None
    return _attention_curve(file, "second"), newest


def _attention_curve(file: ProfileFile, part: str) -> AttentionCurve:
    halves = {key: file.section(part).get(key) for key in ("keys_half", "rows_half", "width_half")}
    absent = [key for key, value in halves.items() if not isinstance(value, int | float)]
    if absent:
        raise file.error(f"{part}.{absent[0]} is missing")
    return AttentionCurve(**{key: float(value or 0) for key, value in halves.items()})
