"""Places on the bus and the ways between them."""

from __future__ import annotations

import pytest

from parastrat.machine import PciPlace
from parastrat.probe.pci import path_between, sysfs_address

ROOT, PORT, SWITCH = "pci0000:10", "0000:10:01.0", "0000:11:00.0"
GPU = ("0000:12:00.0", "0000:13:00.0")
CARD = ("0000:12:01.0", "0000:14:00.0")


def place(*chain: str, numa: int | None = 0) -> PciPlace:
    return PciPlace(chain=chain, numa_node=numa)


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        # two functions of one card
        ((ROOT, PORT, "0000:11:00.0"), (ROOT, PORT, "0000:11:00.1"), "PIX"),
        # one switch
        ((ROOT, PORT, SWITCH, *GPU), (ROOT, PORT, SWITCH, *CARD), "PIX"),
        # a switch behind each port of another
        (
            (ROOT, PORT, SWITCH, "0000:12:00.0", "0000:13:00.0", "0000:14:00.0", "0000:15:00.0"),
            (ROOT, PORT, SWITCH, "0000:12:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"),
            "PXB",
        ),
        # one of them deeper than the other
        ((ROOT, PORT, SWITCH, "0000:12:00.0", *GPU), (ROOT, PORT, SWITCH, *CARD), "PXB"),
        ((ROOT, PORT, "0000:11:00.0"), (ROOT, "0000:10:02.0", "0000:19:00.0"), "PHB"),
        ((ROOT, "0000:10:01.0"), (ROOT, "0000:10:02.0"), "PHB"),
        ((ROOT, PORT, "0000:11:00.0"), ("pci0000:20", "0000:20:01.0", "0000:21:00.0"), "NODE"),
    ],
)
def test_paths(one: tuple[str, ...], other: tuple[str, ...], path: str) -> None:
    assert path_between(place(*one), place(*other), 2) == path
    assert path_between(place(*other), place(*one), 2) == path


@pytest.mark.parametrize(
    ("one", "other", "nodes", "path"),
    [
        (0, 1, 2, "SYS"),
        (1, 1, 2, "NODE"),
        (None, 1, 2, None),
        (None, None, 1, "NODE"),
        (None, 0, None, None),
    ],
)
def test_paths_between_host_bridges(
    one: int | None, other: int | None, nodes: int | None, path: str | None
) -> None:
    left = place(ROOT, "0000:10:01.0", numa=one)
    right = place("pci0000:20", "0000:20:01.0", numa=other)
    assert path_between(left, right, nodes) == path


def test_paths_to_a_place_that_is_unknown() -> None:
    assert path_between(None, place(ROOT, PORT), 1) is None


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("00010000:E1:00.1", "10000:e1:00.1"),
        ("00000008:01:00.0", "0008:01:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("1b:00.0", None),
        ("../../etc", None),
        (7, None),
    ],
)
def test_addresses_as_sysfs_writes_them(address: object, written: str | None) -> None:
    assert sysfs_address(address) == written
