"""Which models torchtitan has, and what it calls them."""

from __future__ import annotations

from typing import NamedTuple


class Baseline(NamedTuple):
    """What torchtitan calls a model."""

    #: module under ``torchtitan.models``
    family: str
    #: of its ``model_registry``
    flavor: str
    #: configuration in its ``config_registry`` that the plan is laid over: data, learning rate, loss
    function: str


#: presets that torchtitan has, at commit b5bcd76c (2026-08-21)
BASELINES = {
    "llama-3-8b": Baseline("llama3", "8B", "llama3_8b"),
    "llama-3.1-8b": Baseline("llama3", "8B", "llama3_8b"),
    "llama-3-70b": Baseline("llama3", "70B", "llama3_70b"),
    "llama-3.1-70b": Baseline("llama3", "70B", "llama3_70b"),
    "llama-3.3-70b": Baseline("llama3", "70B", "llama3_70b"),
    "llama-3.1-405b": Baseline("llama3", "405B", "llama3_405b"),
    "qwen3-0.6b": Baseline("qwen3", "0.6B", "qwen3_0_6b"),
    "qwen3-1.7b": Baseline("qwen3", "1.7B", "qwen3_1_7b"),
    "qwen3-14b": Baseline("qwen3", "14B", "qwen3_14b"),
    "qwen3-32b": Baseline("qwen3", "32B", "qwen3_32b"),
    "qwen3-30b-a3b": Baseline("qwen3", "30B-A3B", "qwen3_30b_a3b"),
    "deepseek-v2-lite": Baseline("deepseek_v3", "16B", "deepseek_v3_16b"),
    "deepseek-v3": Baseline("deepseek_v3", "671B", "deepseek_v3_671b"),
    "gpt-oss-20b": Baseline("gpt_oss", "20b", "gpt_oss_20b"),
    "gpt-oss-120b": Baseline("gpt_oss", "120b", "gpt_oss_120b"),
}
