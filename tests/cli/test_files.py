from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from parastrat.cli.files import write_files
from parastrat.emit import TextFile
from parastrat.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

RUN = TextFile(path="run.sh", text="echo é\n", executable=True)
PLAN = TextFile(path="plan.toml", text="[plan]\n")


def listing(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_writes_into_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert write_files([RUN, PLAN], folder) == (folder / "run.sh", folder / "plan.toml")
    assert (folder / "run.sh").read_bytes() == RUN.text.encode()
    (folder / "by-open").touch()
    usual = (folder / "by-open").stat().st_mode
    assert (folder / "plan.toml").stat().st_mode == usual
    assert (folder / "run.sh").stat().st_mode == usual | (usual & 0o444) >> 2
    (folder / "by-open").unlink()
    assert listing(folder) == {"run.sh", "plan.toml"}


def test_refuses_to_overwrite_other_contents_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("mine")
    with pytest.raises(UsageError, match=r"would overwrite .*plan\.toml, with other contents") as caught:
        write_files([RUN, PLAN], tmp_path)
    assert "--force" in caught.value.hint
    assert listing(tmp_path) == {"plan.toml"}
    write_files([RUN, PLAN], tmp_path, force=True)
    assert (tmp_path / "plan.toml").read_text() == PLAN.text


def test_equal_files_are_left_as_they_are(tmp_path: Path) -> None:
    write_files([RUN, PLAN], tmp_path)
    before = (tmp_path / "run.sh").stat().st_ino
    write_files([RUN, PLAN], tmp_path)
    assert (tmp_path / "run.sh").stat().st_ino == before


def test_nothing_is_left_half_written(tmp_path: Path) -> None:
    blocked = TextFile(path="plan.toml/inside", text="x")
    (tmp_path / "plan.toml").write_text("a file where a folder is needed")
    with pytest.raises(UsageError, match=r"cannot write .*: (File exists|Not a directory)"):
        write_files([RUN, blocked], tmp_path)
    assert listing(tmp_path) == {"plan.toml"}


def test_a_folder_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.sh").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*: it is a folder"):
        write_files([PLAN, RUN], tmp_path, force=True)
    assert listing(tmp_path) == {"run.sh"}


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "plan.toml"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="a device or a pipe"):
        write_files((TextFile(path="plan.toml", text="x"),), tmp_path, force=True)
    assert pipe.is_fifo()
