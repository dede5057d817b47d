"""Write what was emitted: all files or none, and never over someone's work."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from parastrat.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.emit import TextFile


#: bytes within which a file says what it is
_SCHEMA_WITHIN = 200


def write_files(
    files: Sequence[TextFile], directory: Path, *, force: bool = False, flag: str = "-o"
) -> tuple[Path, ...]:
    """Write the files under ``directory``, made where it is missing; return their paths.

    Each file is written under another name first and moved when all of them are complete. A file that is
    already there with the same text is left as it is.

    Raises:
        UsageError: a file with another text is in the way, unless ``force``, or nothing can be written.
    """
    targets = {directory / file.path: file for file in files}
    try:
        # a device or a pipe would be replaced by a file
        taken = [path for path in targets if path.exists() and not path.is_file()]
        if taken:
            what = "a folder" if taken[0].is_dir() else "a device or a pipe"
            raise UsageError(
                f"cannot write {taken[0]}: it is {what}", hint=f"name another place with {flag}"
            )
        changed = {path: file for path, file in targets.items() if not _holds(path, file)}
        if not force:
            _refuse_overwriting([path for path in changed if path.exists()])
        _replace_all(changed)
    except OSError as error:
        place = error.filename or directory
        raise UsageError(
            f"cannot write {place}: {error.strerror}",
            hint=f"name a folder that you can write to with {flag}",
        ) from error
    return tuple(targets)


def refuse_others(path: Path, schema: str, what: str, flag: str = "-o") -> None:
    """Refuse a file that is there and is none of those that a command may replace.

    Args:
        path: what is to be written.
        schema: what stands near the beginning of a file of its kind.
        what: the kind in words, such as ``plan file``.
        flag: that names it.

    Raises:
        UsageError: it is another file, or it cannot be read.
    """
    if not path.is_file():
        return
    try:
        start = path.read_bytes()[:_SCHEMA_WITHIN]
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint=f"name another file with {flag}"
        ) from error
    if start.strip() and schema.encode() not in start:
        raise UsageError(f"{path} is there and is no {what}", hint=f"name another file with {flag}")


def _holds(path: Path, file: TextFile) -> bool:
    if not path.is_file():
        return False
    is_executable = bool(path.stat().st_mode & 0o100)
    return path.read_bytes() == file.text.encode() and is_executable >= file.executable


def _refuse_overwriting(paths: Sequence[Path]) -> None:
    if paths:
        names = ", ".join(str(path) for path in paths)
        raise UsageError(
            f"would overwrite {names}, with other contents",
            hint="write to another folder with -o, or overwrite with --force",
        )


def _replace_all(files: dict[Path, TextFile]) -> None:
    complete: dict[Path, Path] = {}
    try:
        for path, file in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            complete[path] = _complete(path, file)
        for path, temporary in complete.items():
            temporary.replace(path)
    finally:
        for temporary in complete.values():
            temporary.unlink(missing_ok=True)


def _complete(path: Path, file: TextFile) -> Path:
    """Write a file beside its final place."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(file.text.encode())
        # mkstemp's files are for their owner alone
        temporary.chmod((0o777 if file.executable else 0o666) & ~_umask())
    except OSError:
        temporary.unlink()
        raise
    return temporary


def _umask() -> int:
    """Return the process's mask; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
