# ruff: noqa: INP001, T201, TID253 - a script, which reports by printing and is not imported
"""Writes ``profiles/families.json``: what transformers puts in the place of fields left out.

Usage: python scripts/family_defaults.py

For every decoder family with a closed form: the class, the fields that the form reads with their defaults
(null where there is none, or the class computes it from others), and the family's own names of fields.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, ClassVar

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from parastrat.sources.hf_config import architecture_of
from parastrat.sources.hf_families import FORMS
from parastrat.sources.hf_fields import Config

TARGET = Path(__file__).resolve().parents[1] / "profiles" / "families.json"
#: a file without these is broken
REQUIRED = {"hidden_size", "num_hidden_layers"}
#: other sizes, by which computed defaults are told from fixed ones
OTHER = {"hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 160}
#: what a family needs with those, by its own names
MORE = {"mamba2": {"num_heads": 3}}


class Recorder(Config):
    """A config that notes which fields are read, and stops at none."""

    read: ClassVar[set[str]] = set()

    def value(self, name: str) -> Any:
        """Return the field, and note it; lists agree with no sizes."""
        self.read.add(name)
        value = super().value(name)
        return None if isinstance(value, list) else value

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:  # noqa: ARG002
        """Return one, by which all is divisible."""
        self.value(name)
        return 1

    def require(self, name: str, wanted: object) -> None:  # noqa: ARG002
        """Note the field."""
        self.value(name)


def family(kind: str) -> dict[str, Any]:
    """Return a family's entry."""
    cls = CONFIG_MAPPING[kind]
    names = dict(getattr(cls, "attribute_map", {}))
    first = cls().to_dict()
    more = MORE.get(kind, {})
    others = {names.get(name, name): size for name, size in OTHER.items() if names.get(name, name) in first}
    second = cls(**others, **more).to_dict() | {name: first[name] for name in more}
    read = fields_read(kind, first, names)
    own = {names.get(name, name): name for name in sorted(read)}
    defaults = {
        stored: None if name in REQUIRED or computed(first[stored], second[stored]) else first[stored]
        for stored, name in own.items()
        if stored in first
    }
    if 'self.head_dim = getattr(config, "head_dim"' in modeling(cls):
        # the class knows it not, the module takes it
        defaults.setdefault("head_dim", None)
    return {
        "class": CLASSES[kind],
        "names": {name: stored for name, stored in sorted(names.items()) if stored in defaults},
        "defaults": defaults,
    }


def computed(first: object, second: object) -> bool:
    """Return whether a default follows from other fields: it differs, or is a list with an item a layer."""
    return first != second or (isinstance(first, list) and bool(first))


def modeling(config_class: type) -> str:
    """Return the source of the module beside a config class."""
    path = Path(inspect.getfile(config_class))
    beside = path.with_name(path.name.replace("configuration_", "modeling_"))
    return beside.read_text(encoding="utf-8") if beside.exists() else ""


def fields_read(kind: str, table: dict[str, Any], names: dict[str, str]) -> set[str]:
    """Return the names of the fields that the family's form reads."""
    Recorder.read = {"head_dim", "num_key_value_heads", "layer_types", "mlp_layer_types"}
    config = Recorder(Path(kind), table, table, names)
    architecture_of(FORMS[kind], config)
    return Recorder.read


def table() -> dict[str, Any]:
    """Return the whole file."""
    return {
        "source": f"transformers {transformers.__version__}, by scripts/family_defaults.py",
        "families": {kind: family(kind) for kind in sorted(FORMS)},
    }


def main() -> None:
    """Write the file."""
    families = table()
    TARGET.write_text(json.dumps(families, indent=1) + "\n", encoding="utf-8")
    print(f"{len(families['families'])} families written")


if __name__ == "__main__":
    main()
