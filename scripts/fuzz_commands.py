# ruff: noqa: INP001, T201, S311, S603, BLE001 - a script, which reports by printing whatever goes wrong
"""Run commands on random jobs: plans that are written, checked, emitted and estimated, or one message.

Usage: python scripts/fuzz_commands.py [JOBS] [FIRST SEED]
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from fuzz_recommend import Asked, drawn

from parastrat.cli.main import main as parastrat
from parastrat.cli.typed import flag_words

_TARGETS = ("torchrun", "slurm", "python", "torchtitan")
#: done, no, and bad usage
_CODES = (0, 1, 2)


@dataclass
class Ran:
    """What commands did."""

    codes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def command(self, *words: str, allowed: tuple[int, ...] = _CODES) -> int | None:
        """Run one; return its exit code, None where it broke."""
        told, complaint = StringIO(), StringIO()
        try:
            with redirect_stdout(told), redirect_stderr(complaint):
                parastrat(list(words))
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        except Exception:
            self.faults.append(f"parastrat {' '.join(words)}\n{traceback.format_exc()}")
            return None
        self.codes[f"{words[0]} {code}"] += 1
        said = told.getvalue() + complaint.getvalue()
        if code not in allowed:
            self.faults.append(f"parastrat {' '.join(words)}: exit {code}\n{said[-1500:]}")
        if not said.strip() and "-o" not in words:
            self.faults.append(f"parastrat {' '.join(words)}: says nothing")
        return code


def commands(ran: Ran, asked: Asked, draw: random.Random, folder: Path) -> None:
    """Run what somebody would who asks so."""
    job = [asked.job.model, *flag_words(asked.job)]
    fixed, plan = flag_words(asked.fixed), folder / "plan.toml"
    ways = [*(["--applied"] if asked.applied else []), *(["--front"] if asked.front else [])]
    json = ["--json"] if draw.random() < 0.3 else []
    ran.command("recommend", *job, *fixed, *ways, *json, "-o", str(plan))
    if draw.random() < 0.3:
        trace = ["--trace", str(folder / "trace.json")] if draw.random() < 0.3 else []
        ran.command("estimate", *job, *fixed, *trace, *json)
    if draw.random() < 0.2:
        axes = fixed or ["--tp", "2"]
        ran.command("why-not", *job, *axes, *json)
    if not plan.exists():
        return
    ran.command("check", str(plan), "--no-settings", allowed=(0,))
    for target in _TARGETS:
        written = folder / target
        if ran.command("emit", str(plan), "--to", target, "-o", str(written)) == 0:
            ran.faults += [f"{asked} --to {target}: {fault}" for fault in _broken(written)]


def _broken(folder: Path) -> Iterator[str]:
    """Name the files of a folder that their interpreters cannot read."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".py":
            try:
                compile(path.read_text(), path.name, "exec")
            except SyntaxError as error:
                yield f"{path.name}: {error}"
        elif path.suffix in (".sh", ".sbatch"):
            command = [shutil.which("bash") or "bash", "-n", str(path)]
            read = subprocess.run(command, capture_output=True, text=True, check=False)
            if read.returncode:
                yield f"{path.name}: {read.stderr}"


def main(jobs: int, first: int) -> int:
    """Run the commands of so many drawn jobs; return the number of faults."""
    ran = Ran()
    for seed in range(first, first + jobs):
        draw = random.Random(seed)
        told = len(ran.faults)
        with tempfile.TemporaryDirectory() as scratch:
            commands(ran, drawn(draw), draw, Path(scratch))
        for fault in ran.faults[told:]:
            print(f"seed {seed}: {fault}", flush=True)
    counts = ", ".join(f"{name}: {many:,}" for name, many in sorted(ran.codes.items()))
    print(f"{jobs:,} jobs; commands and their exit codes: {counts}; {len(ran.faults)} faults")
    return len(ran.faults)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(1 if main(*(numbers or [1_000]), *([0] if len(numbers) < 2 else [])) else 0)
