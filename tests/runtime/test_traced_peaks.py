"""Peaks of traced models beside steps with real tensors, which torch's MemTracker watches."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from traced import peaks_of
from traced_models import Diffusion, Subject, adapted, noised, of_transformers

pytestmark = pytest.mark.filterwarnings("ignore:Module is None")

_WORDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 0}
_SPEECH = {
    "vocab_size": 4000,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_mel_bins": 20,
    "max_source_positions": 100,
    "max_target_positions": 32,
    **_WORDS,
}
_OPT = of_transformers(
    "OPTConfig",
    "OPTForCausalLM",
    4,
    32,
    vocab_size=1000,
    hidden_size=128,
    ffn_dim=256,
    word_embed_proj_dim=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    **_WORDS,
)
_T5: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}

SUBJECTS = {
    # two stacks of blocks, a third use of tied weights, inputs of two kinds, frozen positions
    "speech": of_transformers("WhisperConfig", "WhisperForConditionalGeneration", 2, 32, **_SPEECH),
    # biases of attention, which are as large for any number of samples
    "text to text": of_transformers(
        "T5Config", "T5ForConditionalGeneration", 8, 32, vocab_size=1000, **_T5, **_WORDS
    ),
    "adapted": Subject(build=partial(adapted, _OPT.build, 4, "q_proj", "v_proj"), samples=4, length=32),
    # keywords and tuples; gradients of a layer that lie beside its last activations
    "diffusion": Subject(build=partial(Diffusion, 128, 3), samples=4, inputs=noised),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_traced_models_peak_is_that_of_its_step(name: str) -> None:
    torch.manual_seed(0)
    peaks = peaks_of(SUBJECTS[name])
    assert peaks.here == pytest.approx(peaks.real, rel=0.005)
