"""``parastrat check`` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parastrat.cli.main import main

BAD = '{\n  "train_batch_size": 8,\n  "zero_optimization": {"stage": 7}\n}\n'


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["check", *arguments])
    return int(left.value.code or 0)


def test_errors_are_shown_and_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(BAD)
    assert ended(str(path)) == 1
    out = capsys.readouterr().out
    assert f"{path}:3:25: error PS602\n" in out
    assert "^" in out
    assert out.endswith("1 file checked: 1 error\n")


def test_what_cannot_be_read_hides_no_other_files_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, foreign = tmp_path / "ds.json", tmp_path / "pod.yaml"
    bad.write_text(BAD)
    foreign.write_text("kind: Pod\n")
    assert ended(str(foreign), str(bad)) == 2
    said = capsys.readouterr()
    assert f"{bad}:3:25: error PS602\n" in said.out
    assert str(foreign) in said.err


def test_a_good_file_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8}')
    assert ended(str(path)) == 0
    assert capsys.readouterr().out == "1 file checked: nothing found\n"


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(BAD)
    assert ended(str(path), "--json") == 1
    table = json.loads(capsys.readouterr().out)
    assert table["schema"] == "parastrat.check/1"
    (found,) = table["findings"]
    assert (found["code"], found["severity"], found["line"], found["column"]) == ("PS602", "error", 3, 25)
    assert found["path"] == str(path)
    assert {"message", "fix", "url"} <= found.keys()
    assert table["files"][0]["format"] == "deepspeed"


def test_github_gets_annotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(BAD)
    assert ended(str(path), "--format", "github") == 1
    assert capsys.readouterr().out.startswith(f"::error file={path},line=3,col=25,title=PS602::")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.json"], "there is no nowhere.json"),
        (["--json", "--format", "github", "DS"], "two ways to print"),
        (["DS", "--on", "dgx-h10"], "dgx-h100"),
        (["DS", "--model", "llama"], "llama"),
        (["EMPTY"], "no configuration in"),
    ],
)
def test_what_cannot_be_meant_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    places = {"DS": str(tmp_path / "ds.json"), "EMPTY": str(tmp_path / "empty")}
    assert ended(*[places.get(each, each) for each in arguments]) == 2
    assert message in capsys.readouterr().err
