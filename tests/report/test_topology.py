"""Matrices of paths: parts that fit the paper, cards in groups, a legend of what occurs."""

from __future__ import annotations

from parastrat.machine import Topology
from parastrat.report.text import Paper, rendered
from parastrat.report.topology import topology_lines


def text(topology: Topology, width: int = 80) -> str:
    paper = Paper(width=width)
    return rendered(topology_lines(topology, paper), paper)


def switched(count: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple("X" if one == other else "NV6" for other in range(count)) for one in range(count))


def test_a_host_without_accelerators_has_none() -> None:
    assert topology_lines(Topology(), Paper()) == []


def test_a_wide_matrix_is_set_in_parts() -> None:
    out = text(Topology(gpu_gpu=switched(16)))
    assert max(map(len, out.splitlines())) <= 80
    heads = [line.split() for line in out.splitlines() if line.startswith("        GPU")]
    assert [name for head in heads for name in head] == [f"GPU{at}" for at in range(16)]
    assert len(heads) == 2
    assert out.count("GPU15 ") == 2  # as a row of both parts


def test_cards_that_all_reach_alike_are_one_column() -> None:
    topology = Topology(
        gpu_gpu=(("X", "PHB"), ("PHB", "X")),
        gpu_card=(("PIX", "PIX", "SYS"), ("SYS", "SYS", "PXB")),
        cards=("a0", "a1", "b0"),
    )
    lines = text(topology).splitlines()
    assert "        N0   N1" in lines
    assert "  GPU1  SYS  PXB" in lines
    assert "  N0    a0, a1" in lines
    assert "  N1    b0" in lines


def test_the_legend_has_what_occurs_and_nothing_else() -> None:
    out = text(Topology(gpu_gpu=(("X", None), (None, "X")), gpu_card=(("NODE",), ("NODE",)), cards=("c",)))
    assert "  GPU0  X     ?" in out
    assert "?     not told by this host" in out
    assert "NODE  through two bridges" in out
    assert "NVn" not in out
    assert "SYS" not in out


def test_one_accelerator_has_a_matrix_of_cards_alone() -> None:
    out = text(Topology(gpu_gpu=(("X",),), gpu_card=(("PIX",),), cards=("mlx5_0",)))
    assert "GPU0  PIX" in out
    assert "X" not in out.replace("PIX", "")
