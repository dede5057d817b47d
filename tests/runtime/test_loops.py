"""Loops that people write train under each strategy as in one process, or are refused with a message."""

from __future__ import annotations

import re
import warnings
from itertools import product
from typing import Any

import pytest
from drawn import drawn
from runtime.loops import PLANS, RECIPES, Setting
from runtime.ranks import on_ranks

pytestmark = pytest.mark.slow

#: its samples are no sequences of the kind that plans divide
_OF_ITS_OWN = ("torchs_transformer", "cp")
CELLS = [cell for cell in product(RECIPES, PLANS) if cell != _OF_ITS_OWN]
#: a loss may differ by as much, where rounding in bf16 comes in (Muon's) or not
NEAR = {"muon_beside_adamw": 5e-3}
#: which are refused, and what the message says
_CALLED = "cut into the stages of a pipeline: it cannot be called"
_COPIED = "a model under pp cannot be copied"
_MIXED = "got mixed torch.Tensor and DTensor"
REFUSED: dict[tuple[str, str], str] = {
    **{
        (name, "pp"): _CALLED
        for name in (
            "a_generator_and_its_critic",
            "a_hook_in_the_loss",
            "a_penalty_on_weights",
            "adversarial_inputs",
            "gradients_of_some",
            "gradients_that_are_cached",
            "shadows_of_parameters",
            "steps_by_hand",
            "torchs_transformer",
            "two_views",
        )
    },
    **{
        (name, "pp"): _COPIED
        for name in ("average_by_state", "averaged_model", "copies_that_are_trained", "mean_teacher")
    },
    ("a_copy_made_too_early", "pp"): "argument",
    ("a_copy_made_too_early", "fsdp2"): _MIXED,
    ("a_copy_made_too_early", "cp"): "no block calls scaled_dot_product_attention",
    ("a_copy_made_too_early", "tp"): _MIXED,
    ("a_penalty_on_weights", "fsdp2"): _MIXED,
    ("a_penalty_on_weights", "cp"): _MIXED,
    ("a_penalty_on_weights", "tp"): _MIXED,
    ("a_teacher", "pp"): "every stage needs parameters of its own that are trained",
    ("gradients_of_some", "ddp"): "the loss did not reach layers.0.norm.weight",
    ("line_search", "pp"): "LBFGS searches along one direction of all weights",
    ("steps_by_hand", "cp"): "appears to not have been used in the graph",
    ("steps_by_hand", "ddp"): "the ranks have trained apart",
    ("steps_by_hand", "fsdp2"): "appears to not have been used in the graph",
}
#: which go on, told that what is worked out of all weights is a stage's, or of positions a rank's
TOLD = {
    ("sharpness_aware", "pp"): "weights were changed behind forward_backward",
    ("two_tasks", "pp"): "gradients were changed between forward_backward and optimizer.step()",
    ("gradients_of_some", "fsdp2"): "optimizer.step() has no gradient",
    ("gradients_of_some", "cp"): "optimizer.step() has no gradient",
    ("a_hook_in_the_loss", "cp"): "a hook on layers.2 sees what this rank has of its positions",
}


def outcome(name: str, strategy: str) -> tuple[list[float] | str, list[str]]:
    """Return what a loop comes to on this rank, or with what it ends; and what it was told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found: Any = RECIPES[name](Setting.of(strategy))
        except Exception as error:  # noqa: BLE001  (whatever a script ends with)
            found = str(error)
    return found, [str(each.message) for each in caught]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize(("name", "strategy"), drawn(CELLS, 4))
def test_a_loop_trains_as_in_one_process_or_is_refused(name: str, strategy: str) -> None:
    said = REFUSED.get((name, strategy))
    expected = RECIPES[name](Setting.of(strategy, alone=True))
    for found, warned in on_ranks(2, outcome, name, strategy):
        if said is not None:
            assert isinstance(found, str)
            assert re.search(re.escape(said), found)
            continue
        if (name, strategy) in TOLD:
            assert any(TOLD[name, strategy] in each for each in warned)
            continue
        assert found == pytest.approx(expected, rel=NEAR.get(name, 1e-4)), (found, expected)


def test_what_is_refused_is_a_loop() -> None:
    assert set(REFUSED) | set(TOLD) <= set(CELLS)
