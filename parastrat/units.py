"""Unit names for signatures, and the factors between file units and SI.

A formula takes plain numbers for one plan and numpy arrays for many. Inside Python, sizes are bytes,
times are seconds and rates are per second; GiB, TFLOP/s and GB/s exist in TOML keys and reports only.
"""

from __future__ import annotations

from typing import Any, TypeAlias

#: int, float or numpy array of either; numpy's own types cannot say "the same for both"
Numbers: TypeAlias = Any
#: bool or array of bool
Mask: TypeAlias = Any

Bytes: TypeAlias = Numbers
Seconds: TypeAlias = Numbers
Ranks: TypeAlias = Numbers

KIB = 1024
MIB = 1024**2
GIB = 1024**3
MEGA = 10**6
GB = 10**9
TERA = 10**12
MICRO = 1e-6

#: of one job: devices, of which the largest that is known has some hundred thousand; a pipeline's stages
MOST_RANKS = 2**20
#: of one step, and tokens of one sample; beyond them bytes would leave the 64 bits of columns
MOST_SAMPLES = 2**30
MOST_TOKENS = 2**30
#: of a loss; with more each would have next to no tokens
MOST_CHUNKS = 4096
#: of a pipeline on one rank; models have fewer blocks
MOST_STAGES = 1024


def scaled(number: float, factor: float) -> float:
    """Return a number in another unit, without the last digits that multiplying leaves: 66.9 TFLOP/s."""
    return float(f"{number * factor:.15g}")


def counted(count: int | None, noun: str) -> str:
    """Return a number with its noun in the plural for several, such as ``2 micro-batches``."""
    several = f"{noun}{'es' if noun.endswith('ch') else 's'}"
    return f"{count} {noun}" if count == 1 else f"{count if count is None else f'{count:,}'} {several}"
