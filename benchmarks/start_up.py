"""Wall time of a whole recommendation beside that of ``import torch``, in turn.

Usage: python benchmarks/start_up.py [RUNS]
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PARASTRAT = shutil.which("parastrat", path=str(Path(sys.executable).parent)) or "parastrat"
RECOMMEND = (PARASTRAT, "recommend", "llama-3.1-70b", "--on", "dgx-h100:8")
IMPORT_TORCH = (sys.executable, "-c", "import torch")


def seconds(command: Sequence[str]) -> float:
    """Run a command, and return its wall time."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Print minimum, median and maximum of both, and of their ratio pair by pair."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    seconds(RECOMMEND), seconds(IMPORT_TORCH)  # so that both find their files in memory
    pairs = [(seconds(RECOMMEND), seconds(IMPORT_TORCH)) for _ in range(runs)]
    ours, torch = zip(*pairs, strict=True)
    ratios = [one / other for one, other in pairs]
    for name, values, unit in (
        (" ".join(RECOMMEND[1:]), ours, " s"),
        ("import torch", torch, " s"),
        ("ratio", ratios, ""),
    ):
        print(
            f"{name:45} min {min(values):.3f}{unit}  median {statistics.median(values):.3f}{unit}"
            f"  max {max(values):.3f}{unit}"
        )


if __name__ == "__main__":
    main()
