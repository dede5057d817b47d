"""Files to values: plan files, and where their models lie."""

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
