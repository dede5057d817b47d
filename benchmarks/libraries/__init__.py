"""Models of public libraries, built small: a file a library, which is imported when it is asked for.

None of them is a dependency: ``pip install timm torchvision diffusers segmentation_models_pytorch
open_clip_torch monai vit_pytorch x_transformers litgpt``, or those of interest.
Every file has ``names()`` and ``members(name)``; a name stands behind its library's: ``timm:vgg``.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from libraries.member import Member

#: by the name that is imported, as pip knows it
LIBRARIES = {
    "timm": "timm",
    "torchvision": "torchvision",
    "diffusers": "diffusers",
    "segmentation_models_pytorch": "segmentation_models_pytorch",
    "open_clip": "open_clip_torch",
    "monai": "monai",
    "vit_pytorch": "vit_pytorch",
    "x_transformers": "x_transformers",
    "litgpt": "litgpt",
}


def installed() -> list[str]:
    """Return the libraries that are installed."""
    return [library for library in LIBRARIES if importlib.util.find_spec(library) is not None]


def names(library: str) -> list[str]:
    """Return the names of a library's models, in an order that is always the same.

    Raises:
        SystemExit: it is not installed.
    """
    return [f"{library}:{name}" for name in _file(library).names()]


def members(name: str) -> list[Member]:
    """Return the ways to build a model, what comes first before others: the first that runs is taken."""
    library, _, own = name.partition(":")
    found: list[Member] = _file(library).members(own)
    return found


def _file(library: str) -> ModuleType:
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{library} is not installed ({error}): pip install {LIBRARIES[library]}"
        ) from error
    return importlib.import_module(f"libraries.{library}_models")
