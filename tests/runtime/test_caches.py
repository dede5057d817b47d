"""Caches of keys and values: off while a module is traced, and in what is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.models import plan
from torch import nn

import parastrat
from parastrat.runtime.caches import caches_off, without_caches
from parastrat.runtime.tracing.trace import traced_module
from parastrat.runtime.wrapping import wrapping_of
from parastrat.stack import Kernels
from parastrat.workload import Precision


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 64}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


class Two(nn.Module):
    """Two parts with configs of their own, of which one has no cache."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = gpt2(), gpt2()
        self.second.config.use_cache = False


def test_caches_are_off_for_a_while() -> None:
    both = Two()
    with caches_off(both):
        assert not both.first.config.use_cache
    assert both.first.config.use_cache
    assert not both.second.config.use_cache
    assert without_caches(both)
    assert not without_caches(both)


def test_a_trace_leaves_caches_as_they_were_and_keeps_none() -> None:
    module, settings = gpt2(), (16, Precision.FP32, Kernels.EAGER)
    cached = traced_module(module, ref="gpt2").at(*settings)
    assert module.config.use_cache
    without_caches(module)
    assert traced_module(module, ref="gpt2").at(*settings).blocks == cached.blocks


def test_what_is_trained_keeps_none() -> None:
    model = parastrat.auto_parallelize(gpt2(), plan=plan())
    assert "model.config.use_cache = False" in wrapping_of(model).calls
    assert model(torch.zeros(2, 16, dtype=torch.int64)).past_key_values is None
