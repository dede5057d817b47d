# ruff: noqa: INP001 - a script
"""Put the report that parastrat prints now into README.md: ``python scripts/readme_report.py``."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
COMMAND = ("recommend", "llama-3.1-70b", "--on", "dgx-h100:8")

_BLOCK = re.compile(r"(?<=<!-- report -->\n```text\n).*?(?=```\n)", re.DOTALL)


def report() -> str:
    """Return the report as it is printed into a pipe of 80 columns."""
    command = [sys.executable, "-m", "parastrat", *COMMAND]
    environ = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(  # noqa: S603 - our own command
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    lines = (line.rstrip() for line in done.stdout.strip().splitlines())
    return f"$ parastrat {' '.join(COMMAND)}\n\n" + "\n".join(lines) + "\n"


def updated(text: str) -> str:
    """Return the first page with the report of now in it."""
    return _BLOCK.sub(lambda _: report(), text, count=1)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")
