"""Damaged hosts are read or refused; ``scripts/fuzz_probe.py`` does the same for many more."""

# ruff: noqa: S311 - drawn for tests
from __future__ import annotations

import random
from pathlib import Path

import pytest
from probe.mutated_hosts import HOSTS, Working, damaged, tell_everything, timed

from parastrat.probe import files

INPUTS = 200
LIMIT_S = 2.0
NAMES = sorted(path.name for path in HOSTS.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_host_is_read_or_refused(tmp_path: Path, name: str) -> None:
    host = Working(root=tmp_path / name, pristine=HOSTS / name)
    read = 0
    for seed in range(INPUTS // len(NAMES)):
        with damaged(host, random.Random(seed)) as told:
            was_read, took = timed(host.root, LIMIT_S)
            assert took < LIMIT_S, told
            read += was_read
    assert 0 < read < INPUTS // len(NAMES)  # some damage is harmless, some is not


def test_a_host_is_mended(tmp_path: Path) -> None:
    host = Working(root=tmp_path / "host", pristine=HOSTS / "laptop-nothing")

    def content(root: Path) -> dict[str, bytes | None]:
        found = {str(path.relative_to(root)): path for path in root.rglob("*") if not path.is_dir()}
        plain = {name: path.is_file() and not path.is_symlink() for name, path in found.items()}
        return {name: path.read_bytes() if plain[name] else None for name, path in found.items()}

    damages = 0
    for seed in range(20):
        with damaged(host, random.Random(seed)):
            damages += content(host.root) != content(host.pristine)
        assert content(host.root) == content(host.pristine)
    assert damages > 10


def test_the_test_notices_a_reader_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "whole", lambda text: None if text is None else int(text))
    host = Working(root=tmp_path / "host", pristine=HOSTS / "laptop-nothing")

    def probe_many() -> None:
        for seed in range(100):
            with damaged(host, random.Random(seed)):
                tell_everything(host.root)

    with pytest.raises(ValueError, match="invalid literal"):
        probe_many()
