"""What a class of transformers that nobody chose is called with, by the names that its forward has."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

VOCAB, LENGTH = 128, 16
#: features before time
_TURNED = "input_features:turned"
#: samples of several images in time, of images of a common size where a config says none, of one channel
_VIDEO, _LARGE, _CHANNEL = "pixel_values:video", "pixel_values:large", "input_values:channel"
#: the likeliest first
_MAIN: tuple[tuple[str, ...], ...] = (
    ("input_ids",),
    ("pixel_values",),
    ("input_ids", "pixel_values"),
    ("input_values",),
    ("input_features",),
    (_TURNED,),
    ("past_values",),
)
#: tried when these fail
_LAST: tuple[tuple[str, ...], ...] = (
    (_LARGE,),
    (_VIDEO,),
    ("pixel_values_videos",),
    (_CHANNEL,),
    ("input_ids", "input_features"),
    ("input_ids", "bbox"),
    ("input_ids", "bbox", "pixel_values"),
    ("input_ids", "mm_token_type_ids"),
    ("input_ids", "token_type_ids"),
)
#: sides of images, and a number of frames, where the config states none
_SIDE, _LARGE_SIDE, _FRAMES, _SAMPLES_OF_SOUND = 64, 224, 4, 4000
#: coordinates of boxes are embedded; the smallest table has so many
_COORDINATES = 32


def calls(model: type[nn.Module]) -> Iterator[tuple[str, ...]]:
    """Yield what a class may be called with, the likeliest first, with what its forward requires."""
    accepted = inspect.signature(model.forward).parameters
    with_decoder = ("decoder_input_ids",) if "decoder_input_ids" in accepted else ()
    required = [
        name
        for name, parameter in accepted.items()
        if name != "self"
        and parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    seen = set()
    for names in _MAIN + _LAST:
        held = {name.partition(":")[0] for name in names}
        if not held <= accepted.keys():
            continue
        more = tuple(name for name in required if name not in {*held, *with_decoder})
        for found in ((*names, *more, *with_decoder), (*names, *more)):
            if found not in seen and all(map(_known, more)):
                seen.add(found)
                yield found


def _known(name: str) -> bool:
    known = {part.partition(":")[0] for names in _MAIN + _LAST for part in names}
    return name in known or name.endswith(("input_ids", "pixel_values", "_mask", "_masks"))


def inputs_of(
    config: Any,
    names: tuple[str, ...],
    samples: int,
    draw: torch.Generator,
    vocabulary: int = VOCAB,
    length: int = LENGTH,
) -> dict[str, Any]:
    """Return a batch of the named inputs, of the shapes that the config says."""
    found: dict[str, torch.Tensor] = {}
    for name in names:
        key = name.partition(":")[0]
        if name.endswith("input_ids"):
            # the last ones are often special
            found[key] = torch.randint(3, vocabulary - 2, (samples, length), generator=draw)
        else:
            found[key] = _input(config, name, samples, draw, length)
    for name in names:
        if name.endswith("_mask"):
            found[name] = torch.ones(
                found.get(name.removesuffix("_mask"), found[names[0]]).shape[:2]
            ).long()
    return found


def _input(config: Any, name: str, samples: int, draw: torch.Generator, length: int) -> torch.Tensor:
    if name.endswith("token_type_ids"):
        return torch.zeros(samples, length, dtype=torch.long)
    if name == "bbox":
        # left, top, right, bottom
        corners = torch.randint(_COORDINATES // 2, (samples, length, 4), generator=draw)
        return corners + torch.tensor([0, 0, _COORDINATES // 2, _COORDINATES // 2])
    return torch.randn(samples, *_shape(config, name), generator=draw)


def _shape(config: Any, name: str) -> tuple[int, ...]:
    """Return the shape of a sample of numbers."""
    if "pixel_values" in name or name == "prompt_masks":
        channels = _stated(config, ("num_channels", "in_channels"), 3)
        image = (channels, *_image(config, _LARGE_SIDE if name == _LARGE else _SIDE))
        frames = _stated(config, ("num_frames", "frames_per_clip"), _FRAMES)
        return (frames, *image) if "video" in name else image
    if name == _CHANNEL:
        return 1, _SAMPLES_OF_SOUND
    if name == "input_values":
        return _sound(config)
    if name in {"input_features", _TURNED}:
        bins = _stated(config, ("num_mel_bins", "input_feat_per_channel", "feature_size"), 80)
        length = 2 * _stated(config, ("max_source_positions",), 32)
        return (bins, length) if name == _TURNED else (length, bins)
    return _stated(config, ("context_length",), 32), _stated(config, ("num_input_channels",), 1)


def _sound(config: Any) -> tuple[int, ...]:
    """Return the shape of a sample: a wave, a wave of channels, or a spectrum over time."""
    if hasattr(config, "audio_channels"):
        return config.audio_channels, _SAMPLES_OF_SOUND
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return config.max_length, config.num_mel_bins
    return (_SAMPLES_OF_SOUND,)


def _image(config: Any, otherwise: int) -> tuple[int, int]:
    side = _stated(config, ("image_size",), otherwise)
    if isinstance(side, int):
        return side, side
    sides = list(side.values()) if isinstance(side, dict) else list(side)
    return sides[0], sides[-1]


def _stated(config: Any, fields: tuple[str, ...], otherwise: Any) -> Any:
    """Return the first of the fields in a config or in a part of it."""
    parts = [part for part in vars(config).values() if hasattr(part, "to_dict")]
    for part in (config, *parts):
        for field in fields:
            if getattr(part, field, None):
                return getattr(part, field)
    return otherwise
