"""Damaged configurations: a value or one clear error, never another exception."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

FUZZ = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "fuzz_check.py"))


def test_no_damage_gives_another_exception(tmp_path: Path) -> None:
    draw = random.Random(7)  # noqa: S311 - the same draw each time
    seeds = FUZZ["seeds"]()
    for _ in range(200):
        name, text = draw.choice(seeds)
        path = tmp_path / name
        path.write_bytes(FUZZ["damaged"](text, draw))
        assert FUZZ["outcome"](path) in {"read", "found wrong", "refused"}
