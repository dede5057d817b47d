"""Batches in mappings of other classes than dict, as tokenizers and their collators return them."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.runtime.tracing.trace import traced_module
from parastrat.stack import Kernels
from parastrat.workload import Precision

SAMPLES, TOKENS, ROWS = 4, 8, 16


class Tagger(nn.Module):
    """Takes ids and labels by name, and computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, 8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, ROWS)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.down(self.up(self.embedding(ids)).relu())
        output = {"logits": logits}
        if labels is not None:
            output["loss"] = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return output


def batch() -> UserDict[str, torch.Tensor]:
    ids = torch.arange(SAMPLES * TOKENS).view(SAMPLES, TOKENS) % ROWS
    return UserDict(ids=ids, labels=ids.flip(0))


def tagger() -> Tagger:
    torch.manual_seed(0)
    return Tagger()


def expected() -> float:
    return float(tagger()(**batch())["loss"].detach())


def accuracy(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return (output["logits"].argmax(-1) == targets).float()


def test_a_step_and_an_evaluation_take_them() -> None:
    given = batch()
    model = parastrat.auto_parallelize(tagger(), plan=plan(micro_batch_size=SAMPLES))
    assert float(parastrat.forward_backward(model, given)) == pytest.approx(expected(), abs=1e-6)
    labelled = UserDict(ids=given["ids"])
    assert float(parastrat.forward_backward(model, labelled, given["labels"])) == pytest.approx(expected())
    right = accuracy(tagger()(**given), given["labels"]).mean().item()
    assert parastrat.evaluate(model, [given], accuracy) == pytest.approx(right)


def test_they_split_into_micro_batches() -> None:
    shape = {"micro_batch_size": SAMPLES // 2, "gradient_accumulation_steps": 2}
    model = parastrat.auto_parallelize(tagger(), plan=plan(**shape))
    assert float(parastrat.forward_backward(model, batch())) == pytest.approx(expected(), abs=1e-6)


def test_they_are_traced() -> None:
    given = batch()
    traced = traced_module(tagger(), ref="tagger", sample_inputs=given)
    plainly = traced_module(tagger(), ref="tagger", sample_inputs=dict(given))
    settings = (None, Precision.FP32, Kernels.EAGER)
    assert traced.at(*settings) == plainly.at(*settings)


def on_two_devices() -> float:
    model = parastrat.auto_parallelize(
        tagger(), plan=plan(tp=2, micro_batch_size=SAMPLES), sample_inputs=batch()
    )
    return float(parastrat.forward_backward(model, batch()))


@pytest.mark.slow
def test_tensor_parallelism_is_proven_on_them() -> None:
    for loss in on_ranks(2, on_two_devices):
        assert loss == pytest.approx(expected(), abs=1e-6)
