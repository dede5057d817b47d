"""What to call a model with, to trace it: as the user says, or as its first layer suggests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.errors import ModelError
from parastrat.runtime.building import SAMPLE_INPUTS, described
from parastrat.runtime.tensors.leaves import as_tree

#: makes a micro-batch of samples, for a sequence length where there is one
MakeInputs: TypeAlias = Callable[[int, int | None], Any]

#: side of the square image that is assumed where only a convolution is known
_IMAGE_SIDE = 224
#: two lengths that tell whether samples are sequences
_LENGTHS = (64, 128)

_HINT = (
    "say what it takes, beside the function that builds it: "
    f"def {SAMPLE_INPUTS}(micro_batch_size, sequence_length): "
    "return torch.zeros(micro_batch_size, sequence_length, dtype=torch.long), or a tuple or dict of tensors"
)
#: names of the parameter by which a forward is given what it should predict
_TARGETS = ("labels", "targets")
#: endings of Hugging Face classes that predict one label a sample
_PER_SAMPLE = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Audio", "Video"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleInputs:
    """How to make a micro-batch, and what it is made of."""

    make: MakeInputs
    #: samples are sequences, whose length can be chosen
    has_tokens: bool
    #: nobody said what they are: their values mean nothing
    guessed: bool = True
    #: what was assumed, in sentences for the report
    caveats: tuple[str, ...] = ()


#: layers that do not say how long, how wide or how many their inputs are, or where samples stand in them
_UNTOLD = (
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    nn.EmbeddingBag,
    nn.Bilinear,
    nn.Conv1d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def example_inputs(
    module: nn.Module, given: MakeInputs | None, *, estimated: bool = False
) -> ExampleInputs:
    """Return how to call the module.

    Taken, in this order: ``given``; a method ``sample_inputs`` of the module; a Hugging Face config; the
    first layer with weights.

    Args:
        module: what is called.
        given: what the user says of it.
        estimated: memory and time are told of them, so that inputs which the module merely runs with will
            not do.

    Raises:
        ModelError: if none of them says it.
    """
    stated = given or own_inputs(module)
    if stated is not None:
        return ExampleInputs(make=stated, has_tokens=_has_tokens(stated), guessed=False)
    main_input = getattr(module, "main_input_name", None)
    config = getattr(module, "config", None)
    if isinstance(main_input, str) and config is not None:
        return _by_config(module, config, main_input)
    return _by_first_layer(module, estimated=estimated)


def own_inputs(module: nn.Module) -> MakeInputs | None:
    """Return the module's method ``sample_inputs``; None where it has none."""
    own = getattr(module, SAMPLE_INPUTS, None)
    return own if callable(own) else None


def _has_tokens(make: MakeInputs) -> bool:
    """Return whether the inputs grow with the sequence length."""
    short, long = (
        [tuple(leaf.shape) for leaf in tree_leaves(made(make, 1, length)) if isinstance(leaf, torch.Tensor)]
        for length in _LENGTHS
    )
    return short != long


def made(make: MakeInputs, micro_batch_size: int, sequence_length: int | None) -> Any:
    """Return a micro-batch.

    Raises:
        ModelError: if the user's function raises, or makes no tensor.
    """
    try:
        inputs = as_tree(make(micro_batch_size, sequence_length))
    except Exception as error:  # user code may raise anything; the message quotes it
        raise ModelError(
            f"{SAMPLE_INPUTS}({micro_batch_size}, {sequence_length}) raised {described(error)}",
            hint=f"{SAMPLE_INPUTS} is called with two positional arguments; {_HINT}",
        ) from error
    if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(inputs)):
        raise ModelError(
            f"{SAMPLE_INPUTS} returned {type(inputs).__name__} without a tensor",
            hint="return a tensor, a tuple or a dict of them",
        )
    return inputs


def shapes_alone(inputs: Any) -> Any:
    """Return inputs without values."""

    def shape(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="meta")

    return tree_map(shape, inputs)


def has_targets(inputs: Any) -> bool:
    """Return whether a micro-batch tells the model what it should predict, so that it computes its loss."""
    return isinstance(inputs, Mapping) and any(name in inputs for name in _TARGETS)


def _by_config(module: nn.Module, config: Any, main_input: str) -> ExampleInputs:
    """Return the inputs of a Hugging Face model, with labels, so that it computes its own loss."""
    accepted = set(inspect.signature(module.forward).parameters)
    per_sample = type(module).__name__.endswith(_PER_SAMPLE)
    sound = _sound(config) if main_input == "input_features" else None
    if main_input == "input_ids" or sound is not None:

        def sequences(samples: int, length: int | None) -> dict[str, torch.Tensor]:
            ids = _ids(samples, length or _LENGTHS[-1])
            batch = {main_input: ids if sound is None else torch.zeros(samples, *sound)}
            if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
                batch["decoder_input_ids"] = ids.clone()  # not every config tells how targets begin
            if "labels" in accepted:
                batch["labels"] = _ids(samples) if per_sample else ids.clone()
            if "next_sentence_label" in accepted:
                batch["next_sentence_label"] = _ids(samples)
            return batch

        return ExampleInputs(make=sequences, has_tokens=True)
    if main_input == "pixel_values":
        image = getattr(config, "num_channels", 3), *_image_size(config)
        frames = getattr(config, "num_frames", None)  # of a video
        shape = (frames, *image) if isinstance(frames, int) else image

        def images(samples: int, _length: int | None) -> dict[str, torch.Tensor]:
            batch = {main_input: torch.zeros(samples, *shape)}
            if "labels" in accepted and per_sample:
                batch["labels"] = _ids(samples)
            return batch

        return ExampleInputs(make=images, has_tokens=False)
    raise ModelError(f"{type(module).__name__} takes {main_input}: of what shape is unknown", hint=_HINT)


def _sound(config: Any) -> tuple[int, int] | None:
    """Return mel bands and frames, two for each of an encoder's positions, as in Whisper; None: unknown."""
    bands, positions = (getattr(config, name, None) for name in ("num_mel_bins", "max_source_positions"))
    return None if bands is None or positions is None else (bands, 2 * positions)


def _image_size(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", _IMAGE_SIDE)
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _by_first_layer(module: nn.Module, *, estimated: bool) -> ExampleInputs:
    """Return tokens, images or vectors, as the first layer with weights takes them."""
    targets = next(
        (name for name in inspect.signature(module.forward).parameters if name in _TARGETS), None
    )
    for name, layer in module.named_modules():
        if estimated and isinstance(layer, _UNTOLD):
            raise ModelError(
                f"what {type(module).__name__} takes cannot be guessed: its first layer, "
                f"{name or 'itself'}, is {type(layer).__name__}, which does not say it",
                hint=_HINT,
            )
        if isinstance(layer, nn.Embedding):

            def tokens(samples: int, length: int | None) -> Any:
                ids = _ids(samples, length or _LENGTHS[-1])
                # some forwards compute all logits only when they are given something to predict
                return {_first_argument(module): ids, targets: ids.clone()} if targets else ids

            return ExampleInputs(make=tokens, has_tokens=True)
        if isinstance(layer, nn.Conv2d):
            return _fixed(
                (layer.in_channels, _IMAGE_SIDE, _IMAGE_SIDE),
                f"samples are taken to be images of {layer.in_channels} x {_IMAGE_SIDE} x {_IMAGE_SIDE}",
            )
        if isinstance(layer, nn.Linear):
            return _fixed(
                (layer.in_features,),
                f"samples are taken to be vectors of {layer.in_features}, as {name or 'it'} takes them",
            )
    raise ModelError(f"what {type(module).__name__} takes cannot be guessed from its layers", hint=_HINT)


def _fixed(shape: tuple[int, ...], caveat: str) -> ExampleInputs:
    return ExampleInputs(
        make=lambda samples, _length: torch.zeros(samples, *shape),
        has_tokens=False,
        caveats=(f"{caveat}: say otherwise with {SAMPLE_INPUTS}",),
    )


def _first_argument(module: nn.Module) -> str:
    return next(iter(inspect.signature(module.forward).parameters))


def _ids(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def resized(batch: Any) -> MakeInputs:
    """Return a function that makes micro-batches like one that the user has.

    The first side of every tensor is the sample; the second side of whole-number tensors is the sequence.
    Whole numbers are those that it has, sample by sample, where the sequence is as long.
    """
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.ndim]
    samples = leaves[0].shape[0] if leaves else 0
    ids = next((leaf for leaf in leaves if leaf.ndim > 1 and not leaf.is_floating_point()), None)
    own_length = None if ids is None else ids.shape[1]

    def like(leaf: Any, micro_batch_size: int, length: int | None) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.ndim or leaf.shape[0] != samples:
            return leaf
        shape = [micro_batch_size, *leaf.shape[1:]]
        if leaf.ndim > 1 and length is not None and leaf.shape[1] == own_length:
            shape[1] = length
        if leaf.is_floating_point() or shape[1:] != [*leaf.shape[1:]]:
            return torch.zeros(shape, dtype=leaf.dtype)
        return leaf[torch.arange(micro_batch_size) % samples]

    def make(micro_batch_size: int, length: int | None) -> Any:
        return tree_map(lambda leaf: like(leaf, micro_batch_size, length), batch)

    return make
