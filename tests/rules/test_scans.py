from __future__ import annotations

from builders import case, codes, columns

from parastrat.rules import findings_of
from parastrat.scans import Scans

DIVIDED = Scans(heads=112, groups=8, divided=True)
WHOLE = Scans(heads=112, groups=8, divided=False)


def test_scans_do_not_divide() -> None:
    # 16 divides the heads, and not the groups; 7 the other way round
    assert "PS226" in codes(tp=16, scans=DIVIDED)
    assert "PS226" in codes(tp=7, scans=Scans(heads=8, groups=7, divided=True))
    assert "PS226" not in codes(tp=8, scans=DIVIDED)
    assert "PS226" not in codes(tp=16, scans=WHOLE)
    assert "PS226" not in codes(tp=16)


def test_scans_do_not_divide_over_context() -> None:
    assert "PS814" in codes(tp=8, cp=4, scans=DIVIDED)
    assert "PS814" not in codes(tp=8, cp=2, scans=DIVIDED)
    # groups are copied where cp is a multiple of them
    assert "PS814" not in codes(tp=4, cp=4, scans=DIVIDED)
    assert "PS814" in codes(tp=4, cp=7, scans=DIVIDED)
    assert "PS814" not in codes(tp=5, scans=DIVIDED)
    assert "PS814" not in codes(tp=8, cp=4, scans=WHOLE)
    assert "PS814" not in codes(tp=8, cp=4)


def test_scans_of_parts_of_sequences() -> None:
    assert "PS815" in codes(cp=2, scans=WHOLE)
    assert "PS815" not in codes(cp=2, scans=DIVIDED)
    assert "PS815" not in codes(cp=1, scans=WHOLE)
    assert "PS815" not in codes(cp=2)


def test_a_fix_names_degrees_that_divide_both() -> None:
    made = case(tp=16, scans=DIVIDED)
    (found,) = (each for each in findings_of(made, columns(tp=16, scans=DIVIDED)) if each.code == "PS226")
    assert found.fix == "use tp 8 or 4"
    assert "112 heads in 8 groups" in found.message
    # pp leaves three ranks, of which tp has all or one
    three = {"tp": 3, "pp": 8, "scans": DIVIDED}
    (found,) = (each for each in findings_of(case(**three), columns(**three)) if each.code == "PS226")
    assert found.fix == "use tp 1"


def test_a_fix_of_cp_names_degrees_that_the_ranks_have() -> None:
    def fix(**changes: object) -> str:
        given = {"scans": DIVIDED} | changes
        found = findings_of(case(**given), columns(**given))
        return next(each.fix for each in found if each.code == "PS814")

    # three ranks, of which cp has all or one: two would be more ranks or fewer
    assert fix(tp=4, cp=3) == "use cp 1"
    assert fix(tp=4, cp=6) == "use cp 2 or 1"
    # four parts of 28 heads copy the two groups that tp leaves
    assert fix(tp=4, cp=6, dp_shard=2) == "use cp 4 or 2"
    # 1,028 tokens are two pieces for each of two ranks, not for each of four
    assert fix(tp=4, cp=6, dp_shard=2, sequence_length=1028) == "use cp 2 or 1"
