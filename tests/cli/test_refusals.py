"""Bad input: exit code 2, nothing on stdout, a message that names it and a hint that helps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.conftest import Typed

NODE = ("--on", "dgx-a100:1")
#: few enough tokens, but scores of all their pairs, whose bytes do not go into 64 bits
SCORES = ("gpt2", *NODE, "--stack", "megatron-2021", "--seq-len", "1073741824", "--global-batch", "8")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("recommend", "lama-3.1-8b", *NODE), "unknown model 'lama-3.1-8b'", "llama-3.1-8b"),
        (("recommend", "gpt2", "--on", "dgx-h10"), "unknown hardware 'dgx-h10'", "dgx-h100"),
        (("recommend", "gpt2", "--on", "8xH100"), "unknown hardware '8xH100'", "did you mean h100x8?"),
        (("recommend", "gpt2", "--on", "DGX-H100:2"), "unknown hardware 'DGX-H100'", "mean dgx-h100:2?"),
        (("recommend", "gpt2", "--on", "h100x8:1,a100x8:1"), "unknown hardware", "machines of one kind"),
        (("recommend", "gpt2", "--on", "abacus"), "unknown hardware 'abacus'", "`parastrat profiles`"),
        (("recommend", "gpt2", "--on", "dgx-h100:0"), "'0' is not a number of nodes", "from 1"),
        (("recommend", "gpt2", *NODE, "--precision", "bf17"), "unknown --precision 'bf17'", "bf16"),
        (("recommend", "gpt2", *NODE, "--optimizer", "adamx"), "unknown --optimizer 'adamx'", "adamw"),
        (("recommend", "gpt2", *NODE, "--recompute", "all"), "unknown --recompute 'all'", "full"),
        (("recommend", "gpt2", *NODE, "--stack", "torhc"), "unknown stack 'torhc'", "torch"),
        (("recommend", "gpt2", *NODE, "--tp", "0"), "--tp 0 is out of range", "from 1"),
        (
            ("recommend", "gpt2", *NODE, "--global-batch", "-3"),
            "--global-batch -3 is out of range",
            "from 1",
        ),
        (("recommend", "gpt2", *NODE, "--seq-len", "many"), "--seq-len 'many' is not a whole", "from 1"),
        (("recommend", "gpt2", *NODE, "--tolerance", "nan"), "--tolerance", "0.05"),
        (("recommend", "gpt2", *NODE, "--strategy", "fsdp3"), "unknown strategy 'fsdp3'", "fsdp2"),
        (
            ("recommend", "gpt2", *NODE, "--strategy", "fsdp+tp"),
            "unknown strategy",
            "did you mean fsdp2+tp?",
        ),
        (("recommend", "gpt2", *NODE, "--strategy", "zero3"), "unknown strategy", "did you mean fsdp2?"),
        (("recommend", "gpt2", *NODE, "--strategy", "ZeRO-3+tp"), "unknown strategy", "mean fsdp2+tp?"),
        (("recommend", f"{__file__}", *NODE), "is not JSON", "name the function that builds the model"),
        (("explain", "slurm-17.out"), "there is no file slurm-17.out", "the log of a job"),
        (("check", __file__, "--format", "xml"), "unknown --format 'xml'", "text, github"),
        (("recommend", "resnet-50", *NODE, "--seq-len", "9"), "no tokens", "leave --seq-len out"),
        (
            ("estimate", "gpt2", *NODE, "--pp", "2", "--tp", "3"),
            "pp 2 x tp 3: 6 ranks do not divide 8",
            "left out",
        ),
        (("estimate", "gpt2", *NODE, "--strategy", "fsdp2", "--tp", "2"), "contradict", "leave one"),
        (("why-not", "gpt2", *NODE), "no axis is given", "--tp 16"),
        (
            ("recommend", "gpt2", "--on", "dgx-h100:99999999999"),
            "--on dgx-h100:99999999999: 799,999,999,992 devices",
            "at most 131,072 nodes",
        ),
        (
            ("recommend", "gpt2", "--on", "h100-sxm5x99999999999"),
            "--on h100-sxm5x99999999999: 99,999,999,999 devices",
            "at most 1,048,576 devices",
        ),
        (
            ("recommend", "gpt2", *NODE, "--seq-len", "1073741824", "--global-batch", "64"),
            "a global batch of 64 samples of 1,073,741,824 tokens",
            "at most",
        ),
        (("estimate", "gpt2", *NODE, "--micro-batch", "1073741824"), "a micro-batch of 1,073,741,824", ""),
        (("recommend", "gpt2", *NODE, "--micro-batch", "1073741824"), "a micro-batch of 1,073,741,824", ""),
        (("recommend", "gpt2", *NODE, "--loss-chunks", "0"), "--loss-chunks 0 is out of range", "from 1"),
        (
            ("recommend", "t5-3b", *NODE, "--loss-chunks", "8"),
            "a loss in chunks",
            "leave --loss-chunks out",
        ),
        (("estimate", *SCORES), "one rank needs more than 256 PiB", "shorter sequences"),
        (("recommend", *SCORES), "one rank needs more than 256 PiB", "shorter sequences"),
        (("explain", "PS100"), "there is no rule 'PS100'", "PS101"),
        (("emit", "absent.toml", "--to", "slurm"), "there is no plan file absent.toml", "recommend"),
        (("run", "absent.toml", "train.py"), "there is no plan file absent.toml", "recommend"),
    ],
)
def test_what_was_wrong_is_said(typed: Typed, arguments: tuple[str, ...], message: str, hint: str) -> None:
    done = typed(*arguments)
    assert done.code == 2
    assert done.out == ""
    first, second = done.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith("hint: ")
    assert hint in second


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("virtual_stages", "pp x virtual_stages"),
        ("pp", "the product of the mesh"),
        ("dp_replicate", "the product of the mesh"),
        ("cp", "the product of the mesh"),
        ("ep", "ep"),
        ("micro_batch_size", "micro_batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ("sequence_length", "sequence_length"),
        ("loss_chunks", "loss_chunks"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "check", "emit"])
def test_a_plan_files_absurd_counts_are_refused(
    typed: Typed, tmp_path: Path, command: str, name: str, message: str
) -> None:
    """Where they would leave the 64 bits of columns, in one message."""
    path = tmp_path / "plan.toml"
    batch = ("--micro-batch", "1", "--global-batch", "32", "--seq-len", "1024")
    made = typed("estimate", "gpt2", *NODE, "--pp", "2", "--dp-shard", "4", *batch, "-o", path)
    assert made.code == 0
    text = path.read_text(encoding="utf-8")
    changed, count = re.subn(rf"(?m)^{name} = \d+$", f"{name} = 9000000000000000000", text)
    assert count
    # without a strategy and an estimate, which would contradict it
    lines = [each for each in changed.partition("[estimate]")[0].splitlines() if "strategy" not in each]
    path.write_text("\n".join(lines), encoding="utf-8")
    target = ("--to", "torchrun", "-o", tmp_path / "out") if command == "emit" else ()
    done = typed(command, path, *target)
    assert done.code in {1, 2}
    said = " ".join((done.out + done.err).split())
    assert f"{message} = " in said
    assert "is more than parastrat counts" in said


@pytest.mark.parametrize("arguments", [("recommend",), ("recommend", "gpt2", "--tpp", "2"), ("recomend",)])
def test_usage(typed: Typed, arguments: tuple[str, ...]) -> None:
    done = typed(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert "Usage:" in done.err


def test_errors_leave_stdout_empty_with_json(typed: Typed) -> None:
    assert typed("recommend", "lama", *NODE, "--json").out == ""


def test_another_file_is_not_overwritten(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    path.write_text("mine = true\n", encoding="utf-8")
    done = typed("recommend", "gpt2", *NODE, "-o", path)
    assert done.code == 2
    assert "is no plan file" in done.err
    assert path.read_text(encoding="utf-8") == "mine = true\n"
