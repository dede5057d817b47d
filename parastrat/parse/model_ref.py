"""MODEL as a plan file stores it: paths relative to the file, names as they are."""

from __future__ import annotations

import os
from pathlib import Path


def relative_ref(ref: str, plan_path: Path) -> str:
    """Return a MODEL, as typed in the working directory, for storing in a plan file.

    Paths (``./folder``, ``config.json``, ``model.py:build``) become relative to the plan file's folder;
    presets, ``hf:org/name`` and ``package.module:callable`` stay. A path on another Windows drive
    becomes absolute.
    """
    path, callable_name = _path_of(ref)
    if path is None:
        return ref
    # the folder is resolved, the name is not: in the hub's cache config.json links to a nameless blob
    target = path.parent.resolve() / path.name if path.name != ".." else path.resolve()
    try:
        relative = Path(os.path.relpath(target, plan_path.resolve().parent)).as_posix()
    except ValueError:
        return target.as_posix() + callable_name
    # a bare folder name would be read as a preset
    return (relative if _is_path(relative) else f"./{relative}") + callable_name


def resolved_ref(ref: str, plan_path: Path) -> str:
    """Return a MODEL stored in a plan file as one that can be loaded from any working directory."""
    path, callable_name = _path_of(ref)
    if path is None:
        return ref
    return os.path.normpath(plan_path.resolve().parent / path) + callable_name


def _path_of(ref: str) -> tuple[Path | None, str]:
    """Split a MODEL into its path, if it has one, and ``:callable``, if it names one."""
    file, colon, name = ref.rpartition(":")
    if colon and file.endswith(".py"):
        return Path(file), f":{name}"
    return (Path(ref), "") if _is_path(ref) else (None, "")


def _is_path(ref: str) -> bool:
    """Whether a MODEL without callable is written as a path; decided by its form, never by the disk."""
    if ref.startswith("hf:"):
        return False
    return "/" in ref or os.sep in ref or ref in {".", ".."} or ref.endswith(".json")
