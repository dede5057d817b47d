"""Weights in files of safetensors, as Hugging Face keeps them: one file, or a folder with an index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from parastrat.errors import UsageError, WrapError

_SUFFIX = ".safetensors"
_ALONE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class SafeTensors(Mapping[str, torch.Tensor]):
    """The tensors of some files by name, each read when it is asked for.

    Args:
        files: of safetensors; no two have a tensor of the same name.

    Raises:
        UsageError: safetensors is not installed.
        WrapError: one of them is no such file.
    """

    def __init__(self, files: list[Path]) -> None:
        if find_spec("safetensors") is None:
            raise UsageError(
                f"{files[0]} is read by safetensors, which is missing", hint="pip install safetensors"
            )
        from safetensors import SafetensorError, safe_open  # noqa: PLC0415  (who has such files has it)

        self._files: dict[str, Any] = {}
        for path in files:
            try:
                opened: Any = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise WrapError(
                    f"{path} cannot be read: {error}", hint="download it again: it may be a part of a file"
                ) from error
            self._files.update(dict.fromkeys(opened.keys(), opened))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._files[name].get_tensor(name)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one, without reading it."""
        return tuple(self._files[name].get_slice(name).get_shape())


def files_of(path: Path) -> list[Path]:
    """Return a file of safetensors, or those of a model's folder; none of what has none.

    A folder may have the same weights in other files besides.

    Raises:
        WrapError: it has some, and nothing says which are the model's.
    """
    if not path.is_dir():
        return [path] if path.suffix == _SUFFIX and path.is_file() else []
    index = path / _INDEX
    if index.is_file():
        try:
            names = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WrapError(
                f"{index} does not say which files the weights are in", hint="download it again"
            ) from error
        return [path / name for name in sorted(names)]
    found = [path / _ALONE] if (path / _ALONE).is_file() else sorted(path.glob(f"*{_SUFFIX}"))
    if len(found) > 1:
        raise WrapError(
            f"{path} has {len(found)} files of safetensors, and no {_INDEX} says which are the model's",
            hint="name one of them, or add the index",
        )
    return found
