# ruff: noqa: INP001 - part of a script
"""The profile of an accelerator, of its row and the rules."""

from __future__ import annotations

import json

from profile_figures import HEADER, Figure, Figures, Row, Table, kind_of, section_lines, source_of

_FORMATS = ("fp32", "tf32", "bf16", "fp16", "fp8")
_TYPES = {"gaudi2": "hpu", "gaudi3": "hpu", "pvc": "xpu"}


def device_text(row: Row, rule: Table) -> str:
    """Return the profile of an accelerator."""
    family, own = _family(row, rule), rule["device"].get(row["id"], {})
    head = [HEADER, *([f"# {own['comment']}"] if "comment" in own else [])]
    capability = row["cc"] or row["arch"]
    head += [
        f'name = "{row["id"]}"',
        f'vendor = "{row["vendor"]}"',
        f'type = "{_TYPES.get(row["arch"], "cuda")}"',
        f'compute_capability = "{capability}"',
        f"bf16_native = {'true' if row['bf16_native'] == '1' else 'false'}",
        "# profiles/curves",
        f'curve = "{own.get("curve", family["curve"])}"',
    ]
    if not own.get("own_curve"):
        source = own.get("curve_source", family["curve_source"])
        head.append(f"curve_assumed = {json.dumps(source)}")
    head += ["# whose links DEVICExM assumes", f'typical_node = "{own["typical_node"]}"']
    peak = _peak(row, rule)
    sections = {
        "figures": _figures(row, rule),
        "peak_tflops": peak,
        "sustained_tflops": _sustained(row, rule, peak),
    }
    return "\n".join([*head, *section_lines(sections)]) + "\n"


def _family(row: Row, rule: Table) -> Table:
    """Return the rules of the devices that are built alike."""
    family: Table = rule["architecture"][row["cc"] or row["arch"]]
    return family


def _figures(row: Row, rule: Table) -> Figures:
    family, own = _family(row, rule), rule["device"][row["id"]]
    source = source_of(row)
    total_gib = float(row["nvml_total_mib"]) / 1024
    usable = family["usable"]
    launch = rule["launch"]["nvidia" if row["vendor"] == "nvidia" else "other"]
    pcie = rule["pcie"][row["pcie_gen"]]
    found = {
        "memory_mib": Figure(
            value=float(row["nvml_total_mib"]),
            kind=kind_of(row, rule, "memory", seen="measured"),
            source=f"the driver's total: {source}",
        ),
        "usable_memory_gib": Figure(
            value=round(total_gib * usable["share"], 2), kind="derived", source=usable["source"]
        ),
        "memory_gb_per_s": Figure(
            value=float(row["hbm_gbps"]), kind=kind_of(row, rule, "bandwidth"), source=source
        ),
        "host_gb_per_s": Figure(
            value=float(pcie["host"]),
            kind="derived",
            source=f"PCIe {row['pcie_gen']}.0 x16, 0.8 of {pcie['nominal']} GB/s: headers and completion",
        ),
        "launch_us": Figure(**launch),
        "attention_efficiency": Figure(**family["attention"]),
        "power_w": Figure(value=float(row["tdp_w"]), kind="assumed", source=source),
    }
    stated = {"attention_efficiency": "attention"}
    return {
        name: Figure(**own[stated.get(name, name)]) if stated.get(name, name) in own else figure
        for name, figure in found.items()
    }


def _peak(row: Row, rule: Table) -> Figures:
    kind, source = kind_of(row, rule, "rates"), f"datasheet, dense: {source_of(row)}"
    return {
        name: Figure(value=float(row[name]), kind=kind, source=source) for name in _FORMATS if row[name]
    }


def _sustained(row: Row, rule: Table, peak: Figures) -> Figures:
    """Return what long multiplies reach: measured, else the share of the nearest measured device."""
    own = rule["device"][row["id"]]
    anchor = "bf16" if "bf16" in peak else "fp16"
    share = own.get("sustained", _family(row, rule)["sustained"])
    mamf = rule["mamf"]["source"]
    if "sustained_bf16" in own:
        main = Figure(**own["sustained_bf16"])
    elif row["mamf_bf16_measured"]:
        main = Figure(value=float(row["mamf_bf16_measured"]), kind="measured", source=mamf)
    else:
        main = Figure(
            value=_rounded(float(peak[anchor].value) * share["share"]),
            kind="assumed",
            source=share["source"],
        )
    reached = float(main.value) / float(peak[anchor].value)
    kind = "assumed" if main.kind == "assumed" else "derived"
    found: Figures = {}
    for name, figure in peak.items():
        if name == anchor:
            found[name] = main
        elif name == "fp16" and figure.value == peak[anchor].value:
            found[name] = Figure(value=main.value, kind=kind, source="as bf16: same units, same width")
        elif name == "fp8" and row["mamf_fp8_measured"]:
            found[name] = Figure(value=float(row["mamf_fp8_measured"]), kind="measured", source=mamf)
        else:
            source = f"{anchor}'s sustained share of its peak, applied to this format's peak"
            found[name] = Figure(value=_rounded(float(figure.value) * reached), kind=kind, source=source)
    return found


def _rounded(rate: float) -> float:
    """Return a derived rate with as many digits as it can have."""
    return float(f"{rate:.4g}")
