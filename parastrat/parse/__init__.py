"""Files to values: plan files, and where their models lie.

Resolved on first use: the loader of profiles needs one module of this package, and not the others' time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parastrat.parse.model_ref import relative_ref, resolved_ref
    from parastrat.parse.parsed import FingerprintedModel, ModelFingerprint, Parsed
    from parastrat.parse.plan_file import read_plan
    from parastrat.parse.problems import MalformedPlanError, Problem

__all__ = [
    "FingerprintedModel",
    "MalformedPlanError",
    "ModelFingerprint",
    "Parsed",
    "Problem",
    "read_plan",
    "relative_ref",
    "resolved_ref",
]

_MODULES = {
    "FingerprintedModel": "parsed",
    "MalformedPlanError": "problems",
    "ModelFingerprint": "parsed",
    "Parsed": "parsed",
    "Problem": "problems",
    "read_plan": "plan_file",
    "relative_ref": "model_ref",
    "resolved_ref": "model_ref",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"parastrat.parse.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'parastrat.parse' has no attribute {name!r}")
