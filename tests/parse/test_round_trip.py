"""Case -> plan.toml -> Parsed gives every part back, equal."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parastrat.case import Case
from parastrat.emit.plan_file import plan_toml
from parastrat.estimate import Estimate
from parastrat.hardware import Hardware
from parastrat.launch import Launch
from parastrat.parse import FingerprintedModel, ModelFingerprint, read_plan
from parastrat.plan import Plan
from parastrat.records import field_types
from parastrat.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
INTEGERS = st.integers(1, 2**40)
FLOATS = st.floats(min_value=1e-300, max_value=1e300)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Every value that a field of this type may have in a plan that can be judged."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return st.one_of(values_of(arm) for arm in get_args(kind))
    if origin is tuple:
        return st.lists(values_of(get_args(kind)[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(NAME, TEXT, max_size=3)
    if is_dataclass(kind) and isinstance(kind, type):
        return st.builds(kind, **{name: values_of(field) for name, field in field_types(kind).items()})
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    simple = {int: INTEGERS, float: FLOATS, bool: st.booleans(), str: TEXT, type(None): st.none()}
    return simple[kind]


def sensible(hardware: Hardware) -> bool:
    device = hardware.device
    shares = (device.whole_products or 1.0, device.whole_memory or 1.0)
    return device.usable_memory_bytes <= device.memory_bytes and max(shares) <= 1


@settings(suppress_health_check=list(HealthCheck), max_examples=60)
@given(
    plan=values_of(Plan),
    workload=values_of(Workload),
    hardware=values_of(Hardware).filter(sensible),
    launch=values_of(Launch),
    estimate=values_of(Estimate),
    model=values_of(ModelFingerprint),
    stack=TEXT,
)
def test_every_part_comes_back_equal(
    *,
    tmp_path: Path,
    plan: Plan,
    workload: Workload,
    hardware: Hardware,
    launch: Launch,
    estimate: Estimate,
    model: ModelFingerprint,
    stack: str,
) -> None:
    case = Case(
        model=FingerprintedModel(model),  # type: ignore[arg-type]
        hardware=hardware,
        workload=workload,
        stack=types.SimpleNamespace(name=stack),  # type: ignore[arg-type]
        plan=plan,
        estimate=estimate,
        launch=launch,
    )
    path = tmp_path / "plan.toml"
    path.write_bytes(plan_toml(case).encode())
    parsed = read_plan(path)
    assert parsed.plan == plan
    assert parsed.workload == workload
    assert parsed.hardware == hardware
    assert parsed.launch == launch
    assert parsed.estimate == estimate
    assert parsed.stack == stack
    assert parsed.model == model
