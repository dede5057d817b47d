"""A whole ``parastrat recommend``, from the command line to its answer, on ever more GPUs.

Usage: python benchmarks/scale.py [MODEL...]

Prints for each number of nodes the wall and processor time of the process, its memory, and what became of
the plans of the space.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARASTRAT = shutil.which("parastrat", path=str(Path(sys.executable).parent)) or "parastrat"
MODELS = ("gpt-3-175b", "llama-3.1-405b", "deepseek-v3")
NODE = "dgx-h100"
NODES = (1, 2, 8, 32, 128, 512, 2048, 8192)
_MIB = 1024  # ru_maxrss counts KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process, and what it took."""

    seconds: float
    processor_s: float
    memory_mib: float
    answer: dict[str, Any]


def ran(model: str, nodes: int) -> Ended:
    """Run one recommendation; one that finds no plan is an answer as well."""
    command = [PARASTRAT, "recommend", model, "--on", f"{NODE}:{nodes}", "--json"]
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        process = os.posix_spawn(
            command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        )
        _, status, used = os.wait4(process, 0)
        seconds = time.perf_counter() - start
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
        out.seek(0)
        return Ended(
            seconds=seconds,
            processor_s=used.ru_utime + used.ru_stime,
            memory_mib=used.ru_maxrss / _MIB,
            answer=json.load(out),
        )


def main() -> None:
    """Print a table for each model."""
    for model in sys.argv[1:] or MODELS:
        print(
            f"{model}\n{'GPUs':>8} {'s':>6} {'cpu s':>6} {'MiB':>5} {'plans':>12} {'bounded':>12}  answer"
        )
        for nodes in NODES:
            ended = ran(model, nodes)
            answer = ended.answer
            chosen = answer["plan"]["strategy"] if answer["plan"] else "nothing fits"
            print(
                f"{8 * nodes:>8,} {ended.seconds:6.2f} {ended.processor_s:6.2f} {ended.memory_mib:5.0f} "
                f"{answer['considered']:>12,} {answer['bounded']:>12,}  {chosen}",
                flush=True,
            )


if __name__ == "__main__":
    main()
