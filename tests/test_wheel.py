"""What is installed: the wheel has the profiles, and a profile loads from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, so that nothing is left in the repository."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    for name in ("parastrat", "profiles"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_the_profiles_and_the_types_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    shipped = {
        path.relative_to(REPOSITORY / "profiles") for path in (REPOSITORY / "profiles").rglob("*.toml")
    }
    assert len(shipped) > 20
    assert {f"parastrat/_profiles/{path.as_posix()}" for path in shipped} <= names
    assert "parastrat/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "profiles/", "scripts/"))]


def test_a_profile_loads_from_the_unpacked_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from parastrat.profiles import load_hardware, load_stack, node_names, profiles_root\n"
        "assert str(profiles_root()).startswith(sys.argv[1]), profiles_root()\n"
        "print(load_hardware('dgx-h100:8').world_size, load_stack('torch').name, len(node_names()))\n"
        "print(sorted({'torch', 'pydantic', 'numpy', 'rich'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    result = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    loaded, heavy = result.stdout.splitlines()
    assert loaded.startswith("64 torch ")
    assert int(loaded.split()[-1]) >= 9
    assert heavy == "[]"
