"""``parastrat check`` with a project's settings, and the flags that go before them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.conftest import Typed

#: PS602 (stage), PS606 (misspelt key) and, on 16 devices, PS401
CONFIG = '{\n  "train_batch_size": 8,\n  "zero_optimization": {"stage": 7},\n  "wall_clock": 1\n}\n'
HEAD = "[tool.parastrat.check]\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(CONFIG)
    return tmp_path


def settle(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(HEAD + text)


def codes(answer: dict[str, object]) -> list[str]:
    findings = answer["findings"]
    assert isinstance(findings, list)
    return [found["code"] for found in findings]


@pytest.mark.usefixtures("project")
def test_without_settings_all_is_told(typed: Typed) -> None:
    done = typed("check", "ds.json", "--json")
    assert (done.code, codes(done.answer)) == (1, ["PS602", "PS606"])
    assert (done.answer["ignored"], done.answer["not_selected"]) == ([], 0)
    assert done.answer["files"][0]["settings"] is None


def test_what_is_ignored_is_told_with_its_reason(project: Path, typed: Typed) -> None:
    settle(project, 'ignore = { PS602 = "stage 7 is our fork\'s" }\n')
    done = typed("check", "ds.json")
    assert done.code == 0
    assert "PS602\n" not in done.out
    assert done.out.endswith(
        "1 file checked: 1 warning\nignored: 1 finding of PS602 (pyproject.toml: stage 7 is our fork's)\n"
    )
    answer = typed("check", "ds.json", "--json").answer
    assert codes(answer) == ["PS606"]
    assert answer["ignored"] == [
        {"code": "PS602", "count": 1, "reason": "stage 7 is our fork's", "stated_in": "pyproject.toml"}
    ]
    assert answer["files"][0]["settings"] == "pyproject.toml"
    github = typed("check", "ds.json", "--format", "github").out.splitlines()
    assert github[-1] == (
        "::notice title=PS602 ignored::1 finding ignored by pyproject.toml: stage 7 is our fork's"
    )
    assert github[0].startswith("::warning file=ds.json,line=4")


def test_ignored_findings_of_all_files_are_counted(project: Path, typed: Typed) -> None:
    (project / "other.json").write_text(CONFIG)
    settle(project, 'ignore = { PS6 = "read elsewhere", PS602 = "our fork" }\n')
    ignored = typed("check", ".", "--json").answer["ignored"]
    assert [(each["code"], each["count"], each["reason"]) for each in ignored] == [
        ("PS602", 2, "our fork"),
        ("PS606", 2, "read elsewhere"),
    ]


def test_what_is_not_selected_is_counted(project: Path, typed: Typed) -> None:
    settle(project, 'select = ["PS606"]\n')
    done = typed("check", "ds.json")
    assert done.code == 0
    assert done.out.endswith("not selected: 1 finding of rules that select leaves out\n")
    answer = typed("check", "ds.json", "--json").answer
    assert (codes(answer), answer["not_selected"], answer["files"][0]["not_judged"]) == (["PS606"], 1, [])
    assert typed("check", "ds.json", "--format", "github").out.splitlines()[-1].startswith("::notice")


def test_target_machines_and_model_make_more_rules_answer(project: Path, typed: Typed) -> None:
    open_rules = typed("check", "ds.json", "--json").answer["files"][0]["not_judged"]
    settle(project, 'on = "dgx-h100:2"\nmodel = "llama-3.1-8b"\n')
    answer = typed("check", "ds.json", "--json").answer
    assert "PS401" in codes(answer)
    assert len(answer["files"][0]["not_judged"]) < len(open_rules)


def test_a_settings_model_is_looked_at(project: Path, typed: Typed) -> None:
    mesh = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 24\nnum_machines: 1\n"
        "fsdp_config: {fsdp_version: 2}\nparallelism_config: {parallelism_config_tp_size: 24}\n"
    )
    (project / "tp.yaml").write_text(mesh)
    heads = "32 heads cannot be split"
    assert heads not in typed("check", "tp.yaml").out
    settle(project, 'model = "llama-3.1-8b"\n')
    assert heads in " ".join(typed("check", "tp.yaml").out.split())


def test_flags_go_before_the_settings(project: Path, typed: Typed) -> None:
    settle(project, 'select = ["PS606"]\nignore = { PS606 = "known" }\non = "dgx-h100:2"\n')
    assert codes(typed("check", "ds.json", "--json").answer) == []
    assert codes(typed("check", "ds.json", "--json", "--select", "PS602").answer) == ["PS602"]
    on_one = typed("check", "ds.json", "--json", "--select", "PS4", "--on", "dgx-h100:1")
    assert codes(on_one.answer) == []
    assert codes(typed("check", "ds.json", "--json", "--select", "PS4").answer) == ["PS401"]
    assert codes(typed("check", "ds.json", "--json", "--no-settings").answer) == ["PS602", "PS606"]
    done = typed("check", "ds.json", "--json", "--select", "PS6", "--ignore", "PS602=by hand")
    assert [(each["reason"], each["stated_in"]) for each in done.answer["ignored"]] == [
        ("by hand", "--ignore"),
        ("known", "pyproject.toml"),
    ]


def test_a_plan_files_own_facts_go_before_the_settings(project: Path, typed: Typed) -> None:
    assert typed("recommend", "gpt2", "--on", "dgx-h100", "-o", "plan.toml").code == 0
    assert typed("check", "plan.toml").code == 0
    settle(project, 'on = "dgx-1v:2"\nmodel = "llama-3.1-405b"\n')
    assert typed("check", "plan.toml").code == 0
    assert typed("check", "plan.toml", "--on", "dgx-1v:2").code == 1


@pytest.mark.parametrize(
    ("text", "flags", "message", "hint"),
    [
        ('select = ["PS999"]', (), "pyproject.toml, line 2: ", "did you mean PS"),
        ('on = "dgx-h10"', (), "pyproject.toml: unknown hardware 'dgx-h10'", "dgx-h100"),
        ('model = "llama-3.1-8"', (), "pyproject.toml: unknown model", "llama-3.1-8b"),
        ('model = "code.py:build"', (), "runs nobody's code", "preset"),
        ("select = [", (), "pyproject.toml is not TOML", "mend"),
        ("", ("--select", "PS9999"), "--select is", "did you mean PS"),
        ("", ("--ignore", "PS602"), "--ignore PS602: no reason", "--ignore PS602="),
        ("", ("--ignore", "PS507=x"), "no rule's code", "PS50"),
    ],
)
def test_what_cannot_be_meant_exits_2(
    project: Path, typed: Typed, text: str, flags: tuple[str, ...], message: str, hint: str
) -> None:
    settle(project, text)
    done = typed("check", "ds.json", *flags)
    assert (done.code, done.out) == (2, "")
    error, told = done.err.splitlines()
    assert message in error
    assert hint in told
