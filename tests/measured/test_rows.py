"""Tables of measured runs as typed rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from parastrat.errors import UsageError
from parastrat.measured import read_rows


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cases.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_cells_become_what_their_column_holds(tmp_path: Path) -> None:
    table = read_rows(
        written(
            tmp_path,
            "id,model,gpus,tp,sequence_parallel,step_time_s,fsdp,notes\na-1,gpt2,8,2,true,0.25,zero3,fast\n",
        )
    )
    (row,) = table.rows
    assert (row.id, row.gpus, row.tp, row.sequence_parallel, row.step_time_s) == ("a-1", 8, 2, True, 0.25)
    assert (row.fsdp, row.pp, row.line) == ("zero3", None, 2)
    assert "notes" in table.columns


def test_a_mark_of_byte_order_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text("id,model,gpus,step_time_s\na-1,gpt2,8,1\n", encoding="utf-8-sig")
    assert read_rows(path).rows[0].id == "a-1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model,gpus,step_time_s\ngpt2,8,1\n", "no column id"),
        ("id,model,gpus\na,gpt2,8\n", "no column of a measurement"),
        ("id,model,gpus,step_time_s\na,gpt2,8,1\na,gpt2,16,1\n", ":3: id 'a' is that of line 2 too"),
        ("id,model,gpus,step_time_s\na,gpt2,eight,1\n", ":2: gpus 'eight' is not a whole number from 1"),
        ("id,model,gpus,step_time_s\na,gpt2,0,1\n", ":2: gpus '0' is not"),
        ("id,model,gpus,step_time_s\na,gpt2,1.5,1\n", ":2: gpus '1.5' is not"),
        ("id,model,gpus,step_time_s\na,gpt2,8,nan\n", ":2: step_time_s 'nan' is not a number from 0"),
        ("id,model,gpus,step_time_s\na,gpt2,8,-1\n", ":2: step_time_s '-1' is not"),
        ("id,model,gpus,step_time_s,sequence_parallel\na,gpt2,8,1,maybe\n", "is not true or false"),
        ("id,model,gpus,step_time_s,date\na,gpt2,8,1,02.04.2025\n", ":2: date '02.04.2025' is no day"),
        ("id,model,gpus,step_time_s\na,,8,1\n", ":2: model is blank"),
        ("", "no column id"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_rows(written(tmp_path, text))
    assert said in refused.value.message


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_rows(tmp_path / "absent.csv")
    binary = tmp_path / "cases.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UsageError, match="no CSV file"):
        read_rows(binary)
