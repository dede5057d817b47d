from __future__ import annotations

from builders import case, codes

from parastrat.model import Family
from parastrat.rules.modules import module_does_not_divide


def test_tensor_parallel_without_heads() -> None:
    assert "PS223" in codes(tp=2, heads=None, kv_heads=None)
    assert "PS223" not in codes(tp=1, heads=None, kv_heads=None)
    assert "PS223" not in codes(tp=2)
    assert "PS223" not in codes(tp=2, heads=None, kv_heads=None, family=Family.MODULE)


def test_tensor_parallel_of_a_module() -> None:
    unknown = {"heads": None, "kv_heads": None, "family": Family.MODULE}
    assert "PS224" in codes(tp=2, **unknown)
    assert "PS224" not in codes(tp=1, **unknown)
    assert "PS224" not in codes(tp=2, family=Family.MODULE)
    assert "PS224" not in codes(tp=2, heads=None, kv_heads=None)


def test_module_does_not_divide() -> None:
    traced = {"heads": None, "kv_heads": None, "family": Family.MODULE}
    assert "PS227" in codes(tp=8, divisible=12, **traced)
    assert "PS227" not in codes(tp=4, divisible=12, **traced)
    assert "PS227" not in codes(tp=8, **traced)
    made = case(tp=8, divisible=12, **traced)
    assert module_does_not_divide.hit(made).fix == "use tp 4 or 2, which divide 12"
    # cp leaves nine ranks, which no tp of twelve but 3 and 1 divides
    nine = case(tp=9, cp=4, divisible=12, **traced)
    assert module_does_not_divide.hit(nine).fix == "use tp 3 or 1, which divide 12"
