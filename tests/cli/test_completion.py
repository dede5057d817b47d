"""What a shell offers when the key is pressed, asked as shells ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parastrat.cli import completion
from parastrat.errors import ProfileError
from parastrat.profiles import catalogue

ASK = """
import sys
from parastrat.cli.main import main
try:
    main([])
finally:
    loaded = {"torch", "transformers", "pydantic", "numpy"} & {n for n in sys.modules if sys.modules[n]}
    print(*sorted(loaded), file=sys.stderr)
"""


def offered(shell: str, line: str) -> subprocess.CompletedProcess[str]:
    """Return what a shell is told for a command line whose last word is at the cursor."""
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    env = {**os.environ, **asked, "_PARASTRAT_COMPLETE": f"complete_{shell}"}
    command = [sys.executable, "-c", ASK]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("parastrat recommend llama-3.1-7", ["llama-3.1-70b"]),
        ("parastrat recommend gpt2 --on p5.", ["p5.48xlarge"]),
        ("parastrat recommend gpt2 --on aws-p5e", ["aws-p5e.48xlarge", "aws-p5en.48xlarge"]),
        ("parastrat estimate gpt2 --on h100-s", ["h100-sxm5x8"]),
        ("parastrat why-not gpt2 --stack torch-", ["torch-compile", "torch-ddp"]),
        ("parastrat recommend gpt2 --precision fp", ["fp16-mixed", "fp32", "fp8"]),
        ("parastrat emit plan.toml --to s", ["slurm"]),
        ("parastrat recommend maxtext", ["maxtext-llama-2-70b", "maxtext-llama-3-70b"]),
        ("parastrat profiles dev", ["devices"]),
        ("parastrat profiles devices t4", ["t4"]),
        ("parastrat explain PS101", ["PS101"]),
        ("parastrat explain ps101", ["ps101"]),
        ("parastrat recommend ./no-such-file", []),
    ],
)
def test_names_are_offered_in_bash(line: str, words: list[str]) -> None:
    assert offered("bash", line).stdout.split() == words


def test_other_shells_are_told_the_same() -> None:
    line = "parastrat recommend gpt2 --on p4"
    names = ["p4d", "p4d.24xlarge", "p4de", "p4de.24xlarge"]
    assert offered("bash", line).stdout.split() == names
    assert offered("fish", line).stdout.split() == names
    zsh = offered("zsh", line).stdout
    assert [name for name in names if f'"{name}"' in zsh] == names


@pytest.mark.parametrize("line", ["parastrat recommend ll", "parastrat recommend gpt2 --on d"])
def test_nothing_heavy_is_loaded_for_names(line: str) -> None:
    done = offered("bash", line)
    assert done.stdout
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown(shell: str) -> None:
    env = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "parastrat", "--show-completion", shell]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert f"_PARASTRAT_COMPLETE=complete_{shell}" in done.stdout


def test_bash_itself_completes(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    own = tmp_path / "parastrat"
    own.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m parastrat "$@"\n', encoding="utf-8")
    own.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    shown = {**env, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [str(own), "--show-completion", "bash"]
    script = subprocess.run(
        command, env=shown, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    asked = f"""{script}
COMP_WORDS=(parastrat recommend bert-l); COMP_CWORD=2
_parastrat_completion parastrat
printf '%s' "${{COMPREPLY[*]}}"
"""
    done = subprocess.run(
        [bash, "-c", asked], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("bert-large", "")


def test_names_that_cannot_be_read_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> tuple[str, ...]:
        raise ProfileError("is not TOML", hint="mend it")

    assert completion.model_words("gpt2-x") == ["gpt2-xl"]
    monkeypatch.setattr(catalogue, "profile_names", broken)
    assert completion.model_words("gpt2-x") == []
