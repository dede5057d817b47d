"""Nodes with another network than their profile's."""

from __future__ import annotations

import pytest

from parastrat.errors import ProfileError
from parastrat.hardware import FigureKind
from parastrat.profiles import load_hardware


def test_a_rate_of_the_node_scales_its_link() -> None:
    plain, slow = load_hardware("dgx-h100:4"), load_hardware("dgx-h100@400g-per-node:4")
    assert (slow.name, slow.num_nodes) == ("dgx-h100@400g-per-node:4", 4)
    assert slow.network.node_bits_per_s == 400e9
    assert plain.scale_out is not None
    assert slow.scale_out is not None
    assert slow.scale_out.nominal_bytes_per_s == 400e9 / 8 / 8
    assert slow.scale_out.bytes_per_s == pytest.approx(plain.scale_out.bytes_per_s / 8)
    assert slow.scale_out.latency_s == plain.scale_out.latency_s
    assert (slow.scale_up, slow.device, slow.host) == (plain.scale_up, plain.device, plain.host)


def test_it_says_that_it_was_scaled() -> None:
    link = load_hardware("p5en.48xlarge@800g-per-node").scale_out
    assert link is not None
    entries = {entry.field: entry for entry in link.provenance}
    assert entries["bytes_per_s"].kind is FigureKind.DERIVED
    assert entries["bytes_per_s"].source.startswith("scaled to 800g-per-node: four nodes")
    assert not entries["latency_s"].source.startswith("scaled")


def test_the_rule_gives_what_the_profile_of_that_name_states() -> None:
    stated, link = load_hardware("dgx-a100@800g-per-node"), load_hardware("dgx-a100").scale_out
    assert stated.scale_out is not None
    assert link is not None
    assert stated.scale_out.bytes_per_s == pytest.approx(link.bytes_per_s / 2, rel=0.01)


def test_an_alias_takes_a_detail() -> None:
    assert load_hardware("p5@100g-per-node").name == "p5.48xlarge@100g-per-node"


@pytest.mark.parametrize("detail", ["", "fast", "0g-per-node", "-1g-per-node", "1e3g-per-node", "800g"])
def test_another_detail_is_refused(detail: str) -> None:
    with pytest.raises(ProfileError, match="is no detail of a node") as caught:
        load_hardware(f"dgx-h100@{detail}:2")
    assert "dgx-h100@800g-per-node" in caught.value.hint


@pytest.mark.parametrize(
    "name", ["nosuch@800g-per-node", "@800g-per-node", "h100x8@800g-per-node", "cpu@10g-per-node"]
)
def test_only_nodes_have_details(name: str) -> None:
    with pytest.raises(ProfileError, match="unknown hardware"):
        load_hardware(name)
