"""timm: of each file of models the smallest, by what their names say of their size, on small images."""

from __future__ import annotations

import contextlib
import functools
import re

import timm
import torch
from timm.models import _registry
from torch import nn

from libraries.member import Member, drawn, without_dropout

#: words for sizes, the smallest first; what says none of them comes between
_SIZES = (
    "^test_|_test",
    "atto|zepto",
    "femto|xxs|xx_small|xxtiny|2xs",
    "pico",
    "nano",
    "xs|x_small|xtiny|cluster",
    "mini",
    "tiny|_ti|_t0?(_|$)|_s0|_s1|_m0|_l1",
    "_b0|b0_|_t1|m1|_0|200m|r26|18|050|075|11m|5m",
    r"small|_s(_|$|\d)|s12|_xs",
    "",
    "base|medium|_b(_|$)|_m(_|$)",
    r"large|_l(_|$)|xlarge|huge|giant|gigantic|\d{3}m|xl",
)
#: what is tried of a depth: its own, and few layers of one width
_DEPTHS: tuple[dict[str, int], ...] = ({}, {"depth": 4})
#: the sides of images that are tried, where a model takes other sides than its own; None: its own
_SIDES = (96, 128, None)


def names() -> list[str]:
    return sorted(_registry._module_to_models)  # noqa: SLF001 - no public list of files


def members(name: str) -> list[Member]:
    """Return the smallest model of a file, or the model of that name."""
    known = _registry._module_to_models.get(name)  # noqa: SLF001
    model = min(known, key=_size) if known else name
    return [
        Member(
            build=functools.partial(_built, model, side, **depth),
            inputs=functools.partial(_images, model, side),
        )
        for depth in _DEPTHS
        for side in _SIDES
    ]


def _size(model: str) -> tuple[int, int, str]:
    place = min(
        (place for place, words in enumerate(_SIZES) if words and re.search(words, model)),
        default=_SIZES.index(""),
    )
    return place, len(model), model


def _built(model: str, side: int | None, **depth: int) -> nn.Module:
    torch.manual_seed(0)
    sides = {} if side is None else {"img_size": side}
    # one takes any size, or none that drops paths
    for more in (sides | {"drop_path_rate": 0.0}, sides, {"drop_path_rate": 0.0}):
        with contextlib.suppress(TypeError):
            return without_dropout(timm.create_model(model, **more, **depth))
    return without_dropout(timm.create_model(model, **depth))


def _images(model: str, side: int | None, samples: int) -> torch.Tensor:
    own = timm.get_pretrained_cfg(model).input_size
    return drawn(samples, own[0], *([side] * 2 if side else own[1:]))
