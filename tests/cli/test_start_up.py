"""What a fresh interpreter loads to answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_HEAVY = "{'torch', 'transformers', 'pydantic', 'jinja2', 'pynvml', 'rich'}"
_ASK = f"""
import sys
from parastrat.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as done:
    sys.stderr.write(f"{{done.code}} {{sorted(name for name in {_HEAVY} if sys.modules.get(name))}}")
"""
#: as on a machine where torch is not installed
_WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def _asked(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        ("recommend", "llama-3.1-8b", "--on", "dgx-h100:1", "--tp", "2", "--precision", "bf16"),
        ("recommend", "gpt2", "--on", "dgx-h100:1", "--json"),
        ("estimate", "gpt2", "--on", "dgx-h100:1"),
        ("explain", "PS101"),
        ("--version",),
    ],
)
def test_nothing_heavy_is_loaded(arguments: tuple[str, ...]) -> None:
    assert _asked(_ASK, *arguments).stderr == "0 []"


_FROZEN = """
import gc
sys.stderr.write(f" {gc.get_freeze_count() > 0}")
"""
_WITH_TORCH = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"


def test_the_last_collection_is_left_out_where_no_torch_counts_what_is_left() -> None:
    assert _asked(_ASK + _FROZEN, "--version").stderr == "0 [] True"
    assert _asked(_WITHOUT_TORCH + _ASK + _FROZEN, "--version").stderr == "0 [] True"
    # Triton's bindings would print it as leaks
    assert _asked(_WITH_TORCH + _ASK + _FROZEN, "--version").stderr == "0 ['torch'] False"


_THREADS = """
import os
setting = os.environ.get("OPENBLAS_NUM_THREADS")
sys.stderr.write(f" {setting} {len(os.listdir('/proc/self/task'))}")
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in procfs")
def test_numpy_starts_no_threads_for_a_plan_and_may_for_what_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    planned = _asked(_ASK + _THREADS, "estimate", "gpt2", "--on", "dgx-h100:1")
    assert planned.stderr == "0 [] 1 1"
    assert " None " in _asked(_ASK + _THREADS, "run", "absent.toml", "absent.py").stderr


def test_planning_works_without_torch() -> None:
    done = _asked(_WITHOUT_TORCH + _ASK, "recommend", "gpt2", "--on", "dgx-h100:1")
    assert done.stderr == "0 []"
    assert done.stdout.startswith("Train gpt2")


def test_what_needs_torch_says_so_without_it() -> None:
    done = _asked(_WITHOUT_TORCH + _ASK, "recommend", "some.module:build", "--on", "dgx-h100:1")
    assert "which needs torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_failure() -> None:
    ask = f"{sys.executable} -m parastrat explain | head -1"
    done = subprocess.run(["/bin/sh", "-c", ask], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "code", "message"),
    [(">&-", 0, ""), ("> /dev/full", 2, "error: cannot write the answer: No space left on device")],
)
def test_nowhere_to_write(place: str, code: int, message: str) -> None:
    if "full" in place and not Path("/dev/full").exists():
        pytest.skip("Linux's full device")
    ask = f"{sys.executable} -m parastrat explain {place}"
    done = subprocess.run(["/bin/sh", "-c", ask], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr


def test_names_that_the_terminal_cannot_show() -> None:
    ask = [sys.executable, "-m", "parastrat", "recommend", "mod\u00e8le", "--on", "dgx-h100"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown model 'mod\\xe8le'")


def test_running_needs_torch(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    assert _asked(_ASK, "recommend", "gpt2", "--on", "dgx-h100", "-o", str(plan)).stderr == "0 []"
    done = _asked(_WITHOUT_TORCH + _ASK, "run", str(plan), __file__)
    assert "takes torch, which is not installed" in done.stderr
