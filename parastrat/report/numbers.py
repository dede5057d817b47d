"""Numbers as people read them: three digits that matter, thousands separated."""

from __future__ import annotations

from parastrat.units import GIB, MIB


def gib(size_bytes: float) -> str:
    """Return bytes in GiB without the unit, such as ``61.2`` or ``1,059``."""
    value = size_bytes / GIB
    if value >= 100:
        return f"{value:,.0f}"
    if 0 < value < 0.005:
        return "<0.01"
    return f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def size(size_bytes: float) -> str:
    """Return bytes with the unit that suits them."""
    return f"{size_bytes / MIB:.0f} MiB" if size_bytes < GIB / 10 else f"{gib(size_bytes)} GiB"


def duration(seconds: float) -> str:
    """Return seconds with the unit that suits them, such as ``12.3 s`` or ``345 ms``."""
    for factor, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        value = seconds / factor
        if value >= 0.9995:
            return f"{value:,.{_decimals(value)}f} {unit}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-6:.2f} us"


def percent(share: float) -> str:
    """Return a share, such as ``41 %``; a tenth matters below ten, a hundredth below a tenth."""
    value = 100 * share
    if 0 < abs(value) < 0.095:  # "0.0 %" would say that it is nothing
        return f"{value:.2f} %" if abs(value) >= 0.005 else "<0.01 %"
    small, nearly_all = 0 < abs(value) < 9.95, 99.5 <= abs(value) < 99.95
    return f"{value:.1f} %" if small or nearly_all else f"{value:,.0f} %"


def count(number: float) -> str:
    """Return a large count in short scale, such as ``70.6 B``; exact below ten thousand."""
    for factor, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if number >= 0.9995 * factor:
            return f"{number / factor:.{_decimals(number / factor)}f}{unit}"
    return f"{number:,.0f}"


def rate(number: float) -> str:
    """Return a rate with about three digits."""
    return f"{number:,.{_decimals(number)}f}"


def _decimals(value: float) -> int:
    if value >= 99.95:
        return 0
    return 1 if value >= 9.995 else 2
