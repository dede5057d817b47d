"""Each mistake in a plan file is named with its file, line, key and mend."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from parastrat.errors import PlanFileError
from parastrat.parse import MalformedPlanError, Parsed, read_plan
from parastrat.parse.problems import PlanSyntaxError
from parastrat.plan import Backend, Mesh, Plan
from parastrat.workload import Precision

WHOLE = (Path(__file__).parents[1] / "emit" / "golden" / "plan.toml").read_text(encoding="utf-8")
ALONE = """\
# by hand
[plan]
dp_shard = 8
micro_batch_size = 2
gradient_accumulation_steps = 1
precision = "bf16-mixed"
backend = "nccl"
"""


def read(tmp_path: Path, text: str | bytes) -> Parsed:
    path = tmp_path / "plan.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_plan(path)


def refused(tmp_path: Path, text: str | bytes) -> PlanFileError:
    with pytest.raises(PlanFileError) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "plan.toml") in caught.value.message
    assert caught.value.hint
    return caught.value


def line_of(text: str, start: str) -> int:
    return next(at for at, line in enumerate(text.splitlines(), 1) if line.startswith(start))


def test_plan_alone_is_enough(tmp_path: Path) -> None:
    parsed = read(tmp_path, ALONE)
    assert parsed == Parsed(
        plan=Plan(
            mesh=Mesh(dp_shard=8),
            micro_batch_size=2,
            gradient_accumulation_steps=1,
            precision=Precision.BF16_MIXED,
            backend=Backend.NCCL,
        ),
        positions=parsed.positions,
    )
    assert parsed.positions["plan.dp_shard"] == (3, 1)


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ('tp = "eight"', 'plan.tp must be a whole number, not "eight"', "write a whole number"),
        ('tp = "8"', 'plan.tp must be a whole number, not "8"', "write tp = 8 without quotes"),
        ("tp = true", "plan.tp must be a whole number, not true", "write a whole number"),
        ("tp = 8.0", "plan.tp must be a whole number, not 8.0", "write tp = 8"),
        ("tp = 0", "plan.tp must be 1 or more, not 0", "write tp = 1 or more"),
        ("tp = -8", "plan.tp must be 1 or more, not -8", "write tp = 1 or more"),
        ("tp = {a = 1}", "plan.tp must be a whole number, not a table", "write a whole number"),
        ("tp = 2024-01-01", "plan.tp is a date", "put quotes around it, or remove plan.tp"),
        ("tp = 0xffffffffffffffffff", "plan.tp is a whole number beyond 64 bits", "write a smaller number"),
        ("dp_shards = 8", "plan.dp_shards is not a key of plan files", "did you mean dp_shard?"),
        ("mesh = {tp = 8}", "plan.mesh is not a key of plan files", "the keys of [plan] are pp, "),
        ('recompute = "ful"', "plan.recompute must be one of none, attention,", 'did you mean "full"?'),
        ("recompute = 7", "selective, full, not 7", 'write one of them, such as recompute = "none"'),
        ('compile = ""', "plan.compile must be one of none, block,", "write one of them"),
        ("async_tp = 1", "plan.async_tp must be true or false, not 1", "write true or false"),
        ('async_tp = "True"', 'must be true or false, not "True"', "write async_tp = true without quotes"),
        ('strategy = "ddp+tp"', 'is "ddp+tp", but the other keys make it "ddp"', "remove strategy"),
    ],
)
def test_a_wrong_line_is_named_with_its_mend(tmp_path: Path, line: str, message: str, hint: str) -> None:
    error = refused(tmp_path, ALONE + line)
    assert f"plan.toml, line 8: plan.{line.split(maxsplit=1)[0]} " in error.message
    assert message in error.message
    assert hint in error.hint


def test_a_missing_key_points_at_its_table(tmp_path: Path) -> None:
    error = refused(tmp_path, ALONE.replace("micro_batch_size = 2\n", ""))
    assert "plan.toml, line 2: plan.micro_batch_size is missing" in error.message
    assert error.hint == "add micro_batch_size to [plan]"


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("[workload]", "[work_load]", "work_load is not a part of plan files", "did you mean workload?"),
        ("plan/1", "plan/2", 'schema is "parastrat.plan/2"; this parastrat reads', "the parastrat that"),
        ("total = 21", "total = 22", "total is 22, but the other keys make it 21", "remove total"),
        ("step = 2.1", "step = 2.2", "step is 2.2, but the other keys make it 2.1", "remove step"),
        ('stack = "torch"', "stack = 1", "estimate.stack must be text in quotes", "write stack ="),
        ("blocks = 32", "", "model.blocks is missing", "add blocks to [model]"),
        ('ref = "dgx-h100:2"', "", "hardware.ref is missing", "add ref to [hardware]"),
        ('ref = "dgx-h100:2"', "ref = 2", "hardware.ref must be text in quotes", 'write ref = "2"'),
        ('field = "sus', 'feild = "sus', "provenance.0.feild is not a key", "did you mean field?"),
        ("num_nodes = 2", "num_nodes = 0", "hardware.num_nodes must be above 0", "parastrat probe"),
        ("bf16 = 66", "bf16 = -66", "hardware.device.sustained.bf16 must be a number from 0", "probe"),
        ("mfu = 0.41", "mfu = nan", "estimate.mfu is nan, not a number", "write a number"),
        ("OMP_NUM_THREADS", '"A;B"', "launch.env.A;B is no name of an environment", "use letters"),
        ('"14"', "14", "OMP_NUM_THREADS must be text in quotes, not 14", 'OMP_NUM_THREADS = "14"'),
        ("global_batch_size = 16", "global_batch_size = 0", "must be 1 or more, not 0", "1 or more"),
        ("loss_chunks = 1", "loss_chunks = 0", "must be 1 or more, not 0", "1 or more"),
        ("[hardware.host]", "[hardware.hosts]", "hardware.hosts is not a key", "did you mean host?"),
    ],
)
def test_a_wrong_part_is_named_with_its_mend(
    tmp_path: Path, old: str, new: str, message: str, hint: str
) -> None:
    assert old in WHOLE
    error = refused(tmp_path, WHOLE.replace(old, new, 1))
    assert message in error.message
    assert re.search(r"plan\.toml, line \d+: ", error.message)
    assert hint in error.hint


def test_all_problems_are_listed_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = WHOLE.replace("tp = 1", 'tp = "1"').replace("blocks = 32", "block = 32")
    error = refused(tmp_path, text)
    assert isinstance(error, MalformedPlanError)
    keys = [problem.key for problem in error.problems]
    assert keys == ["model.block", "plan.tp"]
    assert error.problems[1].position == (line_of(WHOLE, "tp = 1"), 1)
    assert len(error.message.splitlines()) == 2


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    error = refused(tmp_path, ALONE + "".join(f"zz{at} = 1\n" for at in range(20)))
    assert error.message.splitlines()[-1] == "and 12 more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("# nothing\n", "plan is missing"),
        ("plan = 3", "plan must be a table, not 3"),
        ("[plan\ntp = 1", "line 1, column 6: not TOML: "),
        ("[plan]\ntp = \n", "line 2, column 6: not TOML: Invalid value"),
        ("[plan]\ntp = 1\ntp = 2\n", "line 3, column 7: not TOML: Cannot overwrite a value"),
        ("[plan]\ntp = [", "not TOML"),
        (b"\xff\xfe[\x00p\x00", "is not UTF-8 text: byte 0 is not"),
        ("a = " + "[" * 5000, "cannot be read as TOML"),
        ("a = " + "9" * 5000, "cannot be read as TOML"),
        ("[plan]\ntp" + ".a" * 2000 + " = 1", "is nested more than 16 deep"),
    ],
)
def test_a_text_that_is_no_plan(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert message in refused(tmp_path, text).message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="there is no plan file"):
        read_plan(tmp_path / "absent.toml")
    with pytest.raises(PlanFileError, match=r"cannot read plan file .*: Is a directory"):
        read_plan(tmp_path)
    with pytest.raises(PlanFileError, match="is no path: embedded null byte"):
        read_plan(Path("a\0b"))


JUNK = [
    "1", "-1", "0", "1e400", "nan", "inf", "true", '"8"', '""', "[]", "[1, [2]]", "{}", "{a = {b = 1}}",
    "2024-01-01", "12:00:00", "0x" + "f" * 5000, "'''a\nb'''", '"\\u0000"', "[" * 30 + "]" * 30,
]  # fmt: skip
CHARACTERS = "\"'[]{}=.,#\n\r\t\\ 0a-_\x00é\U0001f600"


def mutated(text: str, chance: random.Random) -> str:
    """One to three mistakes: in characters, lines or values."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(text) + 1)
        lines = text.split("\n")
        row = chance.randrange(len(lines))
        match chance.randrange(7):
            case 0:
                text = text[:at] + chance.choice(CHARACTERS) + text[at:]
            case 1:
                text = text[:at] + text[at + chance.randint(1, 5) :]
            case 2:
                text = text[:at]
            case 3:
                text = "\n".join(lines[:row] + lines[row + 1 :])
            case 4:
                text = "\n".join([*lines[:row], chance.choice(lines), *lines[row:]])
            case 5:
                key = lines[row].partition("=")[0]
                text = "\n".join([*lines[:row], f"{key}= {chance.choice(JUNK)}", *lines[row + 1 :]])
            case _:
                renamed = lines[row].replace(chance.choice("aeiou"), chance.choice(["", "e", "."]))
                text = "\n".join([*lines[:row], renamed, *lines[row + 1 :]])
    return text


def test_no_mutation_gives_another_exception(tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311 - the same mistakes every time
    outcomes = set()
    for _ in range(300):
        text = mutated(chance.choice([WHOLE, WHOLE, ALONE]), chance)
        try:
            outcomes.add(type(read(tmp_path, text)))
        except PlanFileError as error:
            outcomes.add(type(error))
    assert outcomes == {Parsed, PlanFileError, PlanSyntaxError, MalformedPlanError}
