"""Reading below a root: what is absent, what cannot be read, and links that lead outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parastrat.errors import ProbeError
from parastrat.probe import files
from parastrat.probe.files import entries, followed, is_folder, read_int, read_text, whole


def put(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_absent_is_a_value(tmp_path: Path) -> None:
    assert read_text(tmp_path, "rate") is None
    assert entries(tmp_path, "infiniband") == ()
    assert not is_folder(tmp_path, "infiniband")


def test_unreadable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    put(tmp_path, "rate", "1")
    monkeypatch.setattr(files.os, "open", refuse)
    with pytest.raises(ProbeError, match=r"rate cannot be read: Permission denied"):
        read_text(tmp_path, "rate")


def test_an_attribute_without_a_value_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_value(*_: object) -> int:
        raise OSError(22, "Invalid argument")  # what the speed of a link that is down answers

    put(tmp_path, "speed", "1")
    monkeypatch.setattr(files.os, "open", no_value)
    assert read_text(tmp_path, "speed") is None


def test_links_are_followed_in_both_forms(tmp_path: Path) -> None:
    put(tmp_path, "devices/card/rate", "200\n")
    (tmp_path / "class").mkdir()
    (tmp_path / "class/a").symlink_to("../devices/card")
    put(tmp_path, "class/b", "../devices/card\n")
    assert {followed(tmp_path, path) for path in entries(tmp_path, "class")} == {"devices/card"}
    assert read_int(tmp_path, "class/a/rate") == read_int(tmp_path, "class/b/rate") == 200


@pytest.mark.parametrize("as_text", [False, True])
def test_no_link_leads_out_of_the_root(tmp_path: Path, as_text: bool) -> None:
    put(tmp_path, "secret", "outside")
    root = tmp_path / "host"
    put(root, "inside", "inside")
    up = "../../../../../../../../../../../.." + str(tmp_path / "secret")
    for name, target in (("up", up), ("absolute", str(tmp_path / "secret")), ("inner", "/inside")):
        if not as_text:
            (root / name).symlink_to(target)
        elif target.startswith(".."):
            put(root, f"{name}/link", "x").unlink()
            put(root, f"{name}/link", target)
    assert read_text(root, "up" if not as_text else "up/link/.") != "outside"
    if not as_text:
        assert read_text(root, "absolute") is None
        assert read_text(root, "inner") == "inside"  # absolute targets begin at the host's own root


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ProbeError, match="circle"):
        read_text(tmp_path, "a")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rate")
    assert read_text(tmp_path, "rate") is None


def test_a_file_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LONGEST_FILE", 10)
    put(tmp_path, "rate", "x" * 11)
    with pytest.raises(ProbeError, match="longer than 10 bytes"):
        read_text(tmp_path, "rate")


def test_names_that_no_kernel_gives_are_left_out(tmp_path: Path) -> None:
    for name in ("eth0", ".gitkeep", "\udcff", "a\nb", "caf\u00e9"):
        (tmp_path / name).mkdir()
    assert entries(tmp_path, "") == ("/eth0",)


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("-1", -1), ("max", None), ("", None), ("1.5", None), ("\u00b2", None), ("9" * 19, None)],
)
def test_whole_numbers_are_those_of_64_bits(text: str, number: int | None) -> None:
    assert whole(text) == number
