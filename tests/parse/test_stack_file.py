"""Stack files: written, read, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from parastrat.errors import ProfileError
from parastrat.parse.stack_file import StackChange, read_stack_file, stack_toml
from parastrat.profiles import load_stack

CHANGE = StackChange(base="torch", constants={"matmul_factor": 0.9, "fsdp_overlap": 1.0}, source="my runs")


def test_comes_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(stack_toml(CHANGE))
    assert read_stack_file(path) == CHANGE


def test_is_a_stack_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(stack_toml(CHANGE))
    stack = load_stack(str(path))
    assert (stack.name, stack.matmul_factor, stack.fsdp_overlap) == (str(path), 0.9, 1.0)
    assert stack.elementwise_factor == load_stack("torch").elementwise_factor


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("parastrat.stack/1", "parastrat.stack/2", "schema is 'parastrat.stack/2'"),
        ('base = "torch"', "base = 1", "base must be a text"),
        ('base = "torch"', "", "base is missing"),
        ('source = "my runs"', 'source = "my runs"\nfast = true', "unknown key 'fast'"),
        ("[constants]", "[others]", "unknown key 'others'"),
        ("matmul_factor", "matmul_facto", "unknown key constants.matmul_facto"),
        ("= 0.9", "= 0", "constants.matmul_factor must be a number above 0, not 0"),
        ("= 0.9", "= true", "constants.matmul_factor must be a number above 0, not True"),
        ("= 0.9", "= nan", "constants.matmul_factor must be a number above 0, not nan"),
        ("= 1.0", "= 1.5", "constants.fsdp_overlap must be a share from 0 to 1, not 1.5"),
        ("[constants]", "[constants", "is not TOML"),
    ],
)
def test_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = stack_toml(CHANGE)
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ProfileError, match=r"mine\.toml") as caught:
        read_stack_file(path)
    assert message in caught.value.message


def test_a_missing_file_and_an_unknown_base_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    with pytest.raises(ProfileError, match="cannot read stack file"):
        load_stack(str(path))
    path.write_text(stack_toml(CHANGE).replace('"torch"', '"torhc"'))
    with pytest.raises(ProfileError, match="unknown stack 'torhc'"):
        load_stack(str(path))
