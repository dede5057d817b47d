from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parastrat.parse import relative_ref, resolved_ref

PLAN = Path("plans/plan.toml")


@pytest.mark.parametrize(
    "ref", ["llama-3.1-8b", "hf:org/name", "package.module:build", "package.module.py_like:build"]
)
def test_names_stay_as_they_are(ref: str) -> None:
    assert relative_ref(ref, PLAN) == ref
    assert resolved_ref(ref, PLAN) == ref


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("model.py:build", "../model.py:build"),
        ("plans/model.py:build", "./model.py:build"),
        ("plans/config.json", "config.json"),
        ("./plans/llama", "./llama"),
        ("./plans", "."),
        ("..", "../.."),
    ],
)
def test_paths_become_relative_to_the_plan(typed: str, stored: str) -> None:
    assert relative_ref(typed, PLAN) == stored
    assert resolved_ref(stored, PLAN) == os.path.normpath(
        f"{Path.cwd() / typed.partition(':')[0]}{''.join(typed.partition(':')[1:])}"
    )


@given(st.lists(st.sampled_from(["a", "b", "..", "model.json", "llama"]), min_size=1, max_size=5))
def test_a_stored_path_leads_back_to_the_same_file(parts: list[str]) -> None:
    typed = "./" + "/".join(parts)
    for plan in (Path("plan.toml"), Path("a/b/plan.toml"), Path("../x/plan.toml")):
        stored = relative_ref(typed, plan)
        assert not Path(stored).is_absolute()
        assert resolved_ref(stored, plan) == os.path.normpath(Path.cwd() / typed)


def test_links_do_not_lead_astray(tmp_path: Path) -> None:
    """A linked folder is followed, a linked file keeps its name, as in the hub's cache."""
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "blob").write_text("{}")
    (tmp_path / "far" / "deep" / "config.json").symlink_to(tmp_path / "blob")
    (tmp_path / "near").symlink_to(tmp_path / "far" / "deep")
    plan = tmp_path / "near" / "plan.toml"
    stored = relative_ref(str(tmp_path / "near" / "config.json"), plan)
    assert stored == "config.json"
    assert relative_ref(str(tmp_path / "blob") + "/", tmp_path / "near" / "plan.toml") == "../../blob"
    assert Path(resolved_ref("../../blob", plan)).read_text() == "{}"
