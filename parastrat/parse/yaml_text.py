"""YAML as PyYAML reads it, with what it passes over in silence; imported on first use."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import ReusedAnchorWarning
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver

_TAG = "tag:yaml.org,2002:"
#: what PyYAML takes for numbers with a point, and for switches: less than ruamel's YAML 1.1
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_LETTERS = frozenset("yYnN")


@dataclass(slots=True)
class Loaded:
    """A document, and the lines and columns, from 0, of keys that stand there again."""

    table: Any = None
    repeats: set[tuple[int, int]] = field(default_factory=set)


class _Resolver(VersionedResolver):
    """Takes for text what PyYAML takes for text: 1e8 and 1.0e8, and the letters y and n."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)
        if kind is not ScalarNode or not implicit[0]:
            return tag
        name = str(tag).removeprefix(_TAG)
        is_text = (name == "float" and not _FLOAT.fullmatch(value)) or (
            name == "bool" and value in _LETTERS
        )
        return self.DEFAULT_SCALAR_TAG if is_text else tag


def load_yaml(text: str) -> Loaded:
    """Read a document.

    Raises:
        YAMLError: it is none.
        ReusedAnchorWarning: an anchor stands twice.
    """
    loaded = Loaded()

    class Constructor(RoundTripConstructor):
        """Keeps the last of several values, and where its key stands."""

        def check_mapping_key(self, node: Any, key_node: Any, mapping: Any, key: Any, value: Any) -> bool:
            if not super().check_mapping_key(node, key_node, mapping, key, value):
                loaded.repeats.add((key_node.start_mark.line, key_node.start_mark.column))
            return True

    reader = YAML(typ="rt", pure=True)
    reader.version = (1, 1)
    reader.allow_duplicate_keys = True
    reader.Resolver, reader.Constructor = _Resolver, Constructor
    with warnings.catch_warnings():
        # PyYAML refuses it
        warnings.simplefilter("error", ReusedAnchorWarning)
        loaded.table = reader.load(text)
    return loaded
