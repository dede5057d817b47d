"""Model presets: ``profiles/models/*.toml`` as model sources."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from parastrat.errors import ModelError
from parastrat.model import Family, ModelSource, TrainingDefaults
from parastrat.profiles import model_names, model_table, nearest
from parastrat.records import build
from parastrat.sources.architecture import Architecture
from parastrat.sources.transformer import transformer

if TYPE_CHECKING:
    from parastrat.model import ModelSpec
    from parastrat.stack import Kernels
    from parastrat.workload import Precision

#: closed forms that are kept, for processes that plan many jobs; what is known of a model's blocks is known
#: of the same object alone
_KEPT = 64

_transformer = lru_cache(maxsize=_KEPT)(transformer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSource:
    """A transformer whose architecture is known."""

    ref: str
    architecture: Architecture
    defaults: TrainingDefaults = field(default_factory=TrainingDefaults)
    #: of the family of transformers that builds modules of these shapes; None where it is not said
    model_type: str | None = None

    @property
    def family(self) -> Family:
        return self.architecture.family

    @property
    def has_tokens(self) -> bool:
        return self.architecture.image is None

    @property
    def max_sequence_length(self) -> int | None:
        return self.architecture.max_sequence_length

    def at(self, sequence_length: int | None, precision: Precision, kernels: Kernels) -> ModelSpec:
        """Return the closed form at a sequence length."""
        return _transformer(self.architecture, sequence_length, precision, kernels, self.ref)


class ImageNetwork(Hashable, Protocol):
    """A network on images, or on their latents, of one size."""

    @property
    def name(self) -> str:
        """The preset's name."""

    @property
    def family(self) -> Family:
        """What the network is."""

    def at(self, precision: Precision, kernels: Kernels, ref: str) -> ModelSpec:
        """Return the closed form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """A network on images of its published size."""

    ref: str
    network: ImageNetwork
    defaults: TrainingDefaults = field(default_factory=TrainingDefaults)

    @property
    def family(self) -> Family:
        return self.network.family

    @property
    def has_tokens(self) -> bool:
        return False

    @property
    def max_sequence_length(self) -> int | None:
        return None

    def at(self, sequence_length: int | None, precision: Precision, kernels: Kernels) -> ModelSpec:
        """Return the closed form; images have no sequence."""
        if sequence_length is not None:
            raise ModelError(f"{self.network.name} takes images, not sequences", hint="leave --seq-len out")
        return _of_network(self.network, precision, kernels, self.ref)


@lru_cache(maxsize=_KEPT)
def _of_network(network: ImageNetwork, precision: Precision, kernels: Kernels, ref: str) -> ModelSpec:
    return network.at(precision, kernels, ref)


def load_preset(name: str) -> ModelSource | None:
    """Return a preset by name or alias; None where there is none of that name. Its ref is its own name."""
    table = model_table(name)
    if table is None:
        return None
    training = build(TrainingDefaults, table.get("training", {}))
    ref = table["name"]
    network = _image_network(table)
    if network is not None:
        return ImageSource(ref=ref, network=network, defaults=training)
    architecture = build(Architecture, _named(table, "architecture"))
    return TransformerSource(
        ref=ref, architecture=architecture, defaults=training, model_type=table.get("model_type")
    )


def _image_network(table: dict[str, Any]) -> ImageNetwork | None:
    """Return what a preset says of a network on images; each kind is imported by its own presets alone."""
    if "residual_network" in table:
        from parastrat.sources.convolutional import ResidualNetwork  # noqa: PLC0415

        return build(ResidualNetwork, _named(table, "residual_network"))
    if "convnext" in table:
        from parastrat.sources.convnext import ConvNeXt  # noqa: PLC0415

        return build(ConvNeXt, _named(table, "convnext"))
    if "diffusion_transformer" in table:
        from parastrat.sources.diffusion import DiffusionTransformer  # noqa: PLC0415

        return build(DiffusionTransformer, _named(table, "diffusion_transformer"))
    return None


def unknown_model(ref: str) -> ModelError:
    """Return the error for a name that is no preset, with the nearest ones."""
    near = nearest(ref, model_names())
    return ModelError(
        f"unknown model {ref!r}",
        hint=(f"did you mean {' or '.join(near)}? " if near else "")
        + "a model is a preset, an HF config.json or its folder, module:callable or path.py:callable",
    )


def left_out(ref: str, reason: str) -> ModelError:
    """Return the error for a model that is known to have no preset."""
    return ModelError(
        f"{ref} is no preset: {reason}",
        hint="its config.json, or a builder as path.py:callable, is built and traced instead, "
        "with the kernels that are installed here",
    )


def _named(table: dict[str, Any], section: str) -> dict[str, Any]:
    return {"name": table["name"], "source": table["source"], **table[section]}
