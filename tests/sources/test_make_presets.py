"""The presets that a script writes are what it would write today."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "make_presets.py"))


@pytest.mark.parametrize("row", SCRIPT["rows"](), ids=lambda row: row["name"])
def test_a_written_preset_is_its_row(row: dict[str, str]) -> None:
    path = ROOT / "profiles" / "models" / f"{row['name']}.toml"
    assert path.read_text(encoding="utf-8") == SCRIPT["preset"](row)
