"""``[tool.parastrat.check]``: where it is looked for, what it says of a file, and what is wrong in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parastrat.check import Settings, settings_of
from parastrat.check.settings import read_settings
from parastrat.errors import ConfigError

HEAD = "[tool.parastrat.check]\n"


def written(folder: Path, text: str, name: str = "pyproject.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def reasons(settings: Settings) -> dict[str, str]:
    return {each.prefix: each.reason for each in settings.ignore}


def test_all_that_can_be_said(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEAD + 'select = ["PS2xx", "ps501"]\nignore = { PS201 = " measured " }\non = "dgx-h100:8"\n'
        'model = "gpt2"\n',
    )
    found = read_settings(path)
    assert found is not None
    assert (found.path, found.select, found.on, found.model) == (
        path,
        ("PS2", "PS501"),
        "dgx-h100:8",
        "gpt2",
    )
    assert reasons(found) == {"PS201": "measured"}


def test_the_nearest_file_with_the_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    written(tmp_path, HEAD + 'model = "outer"\n')
    written(tmp_path / "a" / "b", '[project]\nname = "without"\n')
    file = tmp_path / "a" / "b" / "ds.json"
    assert settings_of(file).model == "outer"
    written(tmp_path / "a", HEAD + 'model = "inner"\n')
    assert settings_of(file).model == "inner"


def test_else_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "work", HEAD + 'model = "gpt2"\n')
    (tmp_path / "work" / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "work" / "deep")
    assert settings_of(tmp_path / "elsewhere" / "ds.json").model == "gpt2"
    monkeypatch.chdir("/")
    assert settings_of(tmp_path / "elsewhere" / "ds.json") == Settings()


@pytest.mark.parametrize("table", ["check", "tool.parastrat.check"])
def test_parastrat_toml(tmp_path: Path, table: str) -> None:
    written(tmp_path, f'[{table}]\nselect = ["PS6"]\n', "parastrat.toml")
    assert settings_of(tmp_path / "ds.json").select == ("PS6",)


def test_paths_have_more_to_say(tmp_path: Path) -> None:
    written(
        tmp_path,
        HEAD + 'on = "dgx-h100:8"\nignore = { PS201 = "everywhere" }\n'
        '[tool.parastrat.check.paths."old/"]\non = "dgx-1v"\nignore = { PS501 = "old" }\n'
        '[tool.parastrat.check.paths."*.yaml"]\nselect = ["PS6"]\nignore = { PS501 = "yaml" }\n',
    )
    plain = settings_of(tmp_path / "new" / "ds.json")
    assert (plain.on, plain.select, reasons(plain)) == ("dgx-h100:8", None, {"PS201": "everywhere"})
    old = settings_of(tmp_path / "old" / "deep" / "ds.json")
    assert (old.on, old.select) == ("dgx-1v", None)
    assert reasons(old) == {"PS201": "everywhere", "PS501": "old"}
    both = settings_of(tmp_path / "old" / "a.yaml")
    assert (both.on, both.select, reasons(both)["PS501"]) == ("dgx-1v", ("PS6",), "yaml")


def test_a_path_elsewhere_is_no_path_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(
        tmp_path / "work", HEAD + 'model = "gpt2"\n[tool.parastrat.check.paths."*"]\nmodel = "bert-large"\n'
    )
    monkeypatch.chdir(tmp_path / "work")
    assert settings_of(Path("ds.json")).model == "bert-large"
    assert settings_of(Path("../elsewhere/ds.json")).model == "gpt2"


def test_a_link_belongs_where_it_lies(tmp_path: Path) -> None:
    written(tmp_path / "mine", HEAD + 'model = "mine"\n')
    written(tmp_path / "theirs", HEAD + 'model = "theirs"\n')
    (tmp_path / "theirs" / "ds.json").write_text("{}")
    (tmp_path / "mine" / "ds.json").symlink_to(tmp_path / "theirs" / "ds.json")
    assert settings_of(tmp_path / "mine" / "ds.json").model == "mine"
    assert settings_of(tmp_path / "mine" / ".." / "theirs" / "ds.json").model == "theirs"


def test_files_are_named_from_the_settings_folder(tmp_path: Path) -> None:
    written(tmp_path, HEAD + 'on = "machines/node.toml:4"\nmodel = "models/config.json"\n')
    found = settings_of(tmp_path / "deep" / "ds.json")
    assert found.on == str(tmp_path / "machines" / "node.toml:4")
    assert found.model == str(tmp_path / "models" / "config.json")


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("selct = ['PS2']", 2, "check.selct is no setting", "did you mean select?"),
        ("hardware = 'dgx-h100'", 2, "check.hardware is no setting", "did you mean on?"),
        ("per-file-ignores = {}", 2, "is no setting", "did you mean paths?"),
        ("colour = 1", 2, "is no setting", "it has select, ignore, on, model, paths"),
        ("select = 'PS2'", 2, "must be a list of codes, not", 'select = ["PS2", "PS501"]'),
        ("select = []", 2, "is empty", "remove it"),
        ("select = ['PS2',\n  'PS999']", 3, "PS999", "did you mean PS"),
        ("select = ['PS209']", 2, "no rule's code", "PS210"),
        ("select = ['P']", 2, "no rule's code", "explain` lists"),
        ("ignore = ['PS201']", 2, "must be a table of codes with reasons", "ignore = { PS201 ="),
        ("ignore = { PS201 = '  ' }", 2, "check.ignore.PS201 has no reason", "say why"),
        ("ignore = { PS201 = true }", 2, "check.ignore.PS201 has no reason", "say why"),
        ("[tool.parastrat.check.ignore]\nPS2O1 = 'measured'", 3, "no rule's code", "PS201"),
        ("on = 8", 2, "check.on must be text, not 8", 'on = "dgx-h100:8"'),
        ("model = ''", 2, "check.model must be text", 'model = "llama-3.1-8b"'),
        ("model = 2026-01-01", 2, "check.model must be text, not 2026-01-01", 'model = "llama-3.1-8b"'),
        ("on = [07:32:00]", 2, 'check.on must be text, not ["07:32:00"]', 'on = "dgx-h100:8"'),
        ("select = 2026-01-01T00:00:00", 2, "must be a list of codes, not", "select = ["),
        ("paths = 1", 2, "check.paths must be a table", "configs/old"),
        ("[tool.parastrat.check.paths.'a.json']\nselct = []", 3, "a.json.selct is no setting", "select"),
        ("[tool.parastrat.check.paths.'a.json']\npaths = {}", 3, "a.json.paths is no setting", "it has"),
        ("[tool.parastrat.check.paths]\n'a.json' = 1", 3, "a.json must be a table", "write ["),
        ("[tool.parastrat.check.paths.'../b']\non = 'cpu'", 2, "no path below", "relative to the folder"),
        ("[tool.parastrat.chekc]", 2, "tool.parastrat.chekc is not read", "[tool.parastrat.check]?"),
        ("select = [", None, "is not TOML", "mend the line"),
    ],
)
def test_what_is_wrong_is_told(
    tmp_path: Path, text: str, line: int | None, message: str, hint: str
) -> None:
    path = written(tmp_path, HEAD + text + "\n")
    with pytest.raises(ConfigError) as told:
        settings_of(tmp_path / "ds.json")
    assert str(path) in told.value.message
    assert message in told.value.message
    assert hint in told.value.hint
    assert line is None or f"line {line}: " in told.value.message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pyproject.toml", "tool = { parastrat = { check = 8 } }\n", "must be a table, not 8"),
        ("pyproject.toml", "[tool]\nparastrat = 8\n", "tool.parastrat must be a table"),
        ("pyproject.toml", '[tool.parastrat]\nselect = ["PS2"]\n', "tool.parastrat.select is not read"),
        ("parastrat.toml", 'select = ["PS2"]\n', "select is not read by parastrat"),
        ("parastrat.toml", "[check]\n[tool.parastrat.check]\n", "has [check] and [tool.parastrat.check]"),
        ("pyproject.toml", '[tool.parastrat.check]\non = "\x00"\n', "is not TOML"),
    ],
)
def test_tables_that_nobody_would_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    written(tmp_path, text, name)
    with pytest.raises(ConfigError) as told:
        settings_of(tmp_path / "ds.json")
    assert message in told.value.message


def test_two_tables_in_one_folder(tmp_path: Path) -> None:
    written(tmp_path, HEAD)
    written(tmp_path, "[check]\n", "parastrat.toml")
    with pytest.raises(ConfigError, match=r"both pyproject.toml and parastrat.toml"):
        settings_of(tmp_path / "ds.json")


def test_all_problems_are_told_in_the_files_order(tmp_path: Path) -> None:
    written(tmp_path, HEAD + "on = 1\nselct = []\nignore = { PS999 = '' }\n[tool.parastrat.chekc]\n")
    with pytest.raises(ConfigError) as told:
        settings_of(tmp_path / "ds.json")
    lines = told.value.message.splitlines()
    assert [line.split("line ")[1][0] for line in lines] == ["2", "3", "4", "4", "5"]


def test_the_readmes_example(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(\[tool\.parastrat\.check\]\n.*?)```", readme, flags=re.DOTALL)
    written(tmp_path, example)
    old = settings_of(tmp_path / "configs" / "v100" / "ds.json")
    assert (old.on, old.model, set(reasons(old))) == ("dgx-1v:4", "llama-3.1-8b", {"PS320", "PS410"})
