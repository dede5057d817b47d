# ruff: noqa: INP001 - part of a script
"""The profile of a node, of its row, its device's row and the rules."""

from __future__ import annotations

import re

from profile_figures import HEADER, Figure, Figures, Row, Table, kind_of, section_lines, source_of


def node_text(row: Row, device: Row, rule: Table, host: Row | None = None) -> str:
    """Return the profile of a node.

    Args:
        row: the node's.
        device: its device's row.
        rule: the rules.
        host: what is known of its processors and their memory; None: nothing.
    """
    name = node_name(row, rule)
    fabric = _fabric(row, device, rule)
    per_node = int(row["gpus_per_node"])
    head = [HEADER]
    if "devices" in fabric:
        head.append(f"# A node is a tray: {fabric['devices']} devices share one NVLink domain.")
    head += [f'name = "{name}"', f'device = "{row["gpu"]}"', f"devices_per_node = {per_node}"]
    up = _scale_up(row, device, rule)
    plain = f'kind = "{fabric["kind"]}"\ndevices = {fabric.get("devices", per_node)}'
    sections = {
        "scale_up": up,
        "scale_out": _scale_out(row, rule),
        "host": {**_processors(host), **_host(row)},
        "network": _network(row, rule),
    }
    lines = section_lines(sections)
    lines.insert(lines.index("[scale_up]") + 1, plain)
    lines.insert(lines.index("[scale_out]"), "# one device, one direction")
    return "\n".join([*head, *lines]) + "\n"


def node_name(row: Row, rule: Table) -> str:
    """Return the name that a node's profile has."""
    name: str = rule["node_names"].get(row["id"], row["id"])
    return name


def _fabric(row: Row, device: Row, rule: Table) -> Table:
    generation = re.match(r"nvlink(\d)", device["link_gen"])
    words = rule["fabric_words"][row["intra_fabric"]].format(gen=generation[1] if generation else "")
    if words == "pcie-host" and row["gpu"] in rule["peer_to_peer"]["devices"]:
        words = "pcie-peer"
    fabric: Table = rule["fabric"][words]
    return fabric


def _scale_up(row: Row, device: Row, rule: Table) -> Figures:
    fabric = _fabric(row, device, rule)
    source = source_of(row)
    if fabric["kind"] == "pcie":
        gen = device["pcie_gen"]
        nominal = Figure(
            value=float(rule["pcie"][gen]["nominal"]), kind="derived", source=f"PCIe {gen}.0 x16"
        )
    elif "nominal" in fabric:
        nominal = Figure(**fabric["nominal"])
    else:
        kind = "assumed" if "remembered" in row["confidence"] else "derived"
        nominal = Figure(
            value=float(row["intra_uni_gbps_per_gpu"]),
            kind=kind,
            source=f"{row['intra_fabric']}, {device['link_gen']}: {source}",
        )
    found = {
        "nominal_gb_per_s": nominal,
        "gb_per_s": _achieved(nominal, fabric["share"]),
        "latency_us": Figure(**fabric["latency_us"]),
    }
    if "all_reduce_gain" in fabric:
        found["all_reduce_gain"] = Figure(**fabric["all_reduce_gain"])
    return found


def _scale_out(row: Row, rule: Table) -> Figures:
    gbit, per_node = float(row["node_gbps"]), int(row["gpus_per_node"])
    words = rule["network_words"][_between(row)]
    nominal = Figure(
        value=gbit / 8 / per_node,
        kind=kind_of(row, rule, "network"),
        source=f"{gbit:g} Gb/s for {per_node} devices: {source_of(row)}",
    )
    return {
        "nominal_gb_per_s": nominal,
        "gb_per_s": _achieved(nominal, rule["scale_out"]["share"]),
        "latency_us": Figure(**rule["latency"][words["latency"]]["latency_us"]),
    }


def _achieved(nominal: Figure, share: Table) -> Figure:
    """Return the rate that collectives reach; no better known than the rate that it is a share of."""
    kind = "assumed" if "assumed" in (nominal.kind, share["kind"]) else "derived"
    value = float(f"{float(nominal.value) * share['value']:.3g}")
    return Figure(value=value, kind=kind, source=share["source"])


def _between(row: Row) -> str:
    return row["network"].partition(" or ")[0]


def _processors(host: Row | None) -> Figures:
    """Return cores and memory, as far as somebody states them."""
    if host is None:
        return {}
    found = {"cores": Figure(value=float(host["cores"]), kind=host["cores_kind"], source=host["source"])}
    if host["memory_gib"]:
        found["memory_gib"] = Figure(value=float(host["memory_gib"]), kind="derived", source=host["source"])
    return found


def _host(row: Row) -> Figures:
    kind = "assumed" if "seen" not in row["confidence"] else "derived"
    return {
        "numa_nodes": Figure(value=float(row["numa_nodes"]), kind=kind, source=source_of(row)),
        "system": Figure(value="linux", kind="assumed", source="usual for such servers"),
    }


def _network(row: Row, rule: Table) -> Figures:
    kind, source = kind_of(row, rule, "network"), source_of(row)
    cards = f"{row['nic_count']} cards of {row['nic_gbps']} Gb/s: " if row["nic_count"] else ""
    found = {
        "kind": Figure(
            value=rule["network_words"][_between(row)]["kind"],
            kind=kind,
            source=f"{row['network']}: {source}",
        ),
        "node_gbit_per_s": Figure(value=float(row["node_gbps"]), kind=kind, source=f"{cards}{source}"),
    }
    direct = rule["gpudirect"].get(node_name(row, rule))
    if direct:
        found["gpudirect"] = Figure(value=True, kind="derived", source=direct)
    return found
