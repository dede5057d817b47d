"""Families of the installed transformers, traced beside a step that runs: nobody chose them.

Usage: python benchmarks/traced_families.py [TASK...]

A task is causal, masked, seq2seq, image, video, segmentation or audio; without one all are taken. Each
family's class for it is built with three layers of width 256, as far as its config takes that, and held
against a real step as benchmarks/traced.py does. Families that are large all the same, those whose inputs
cannot be told from their config and those whose forward asks for values are named with what was said.
"""

from __future__ import annotations

import multiprocessing
import re
import statistics
import sys
import warnings
from collections import Counter
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from traced import GOAL, estimated, real
from traced_models import Subject

from parastrat.runtime.caches import without_caches
from parastrat.runtime.tracing import watched
from parastrat.runtime.tracing.fakes import as_with_values

TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "video": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "audio": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
}
#: whose samples are tokens
_OF_TOKENS = ("causal", "masked", "seq2seq")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_SIZES = (
    dict.fromkeys((*_LAYERS, "num_decoder_layers"), 3)
    | dict.fromkeys(("hidden_size", "n_embd", "d_model"), 256)
    | {"intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    | {"vocab_size": 1024, "max_position_embeddings": 512}
)
#: draws that a trace and a step do not share
_DRAWS = re.compile(r"dropout|drop_rate|pdrop|drop_path|layerdrop")
_SAMPLES, _LENGTH, _LARGEST, _PATIENCE_S = 4, 128, 150_000_000, 300.0


def families(task: str) -> dict[str, str]:
    """Return the class of each family that has one for a task."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - only where it is asked for

    stated = getattr(modeling_auto, TASKS[task])
    return {family: name if isinstance(name, str) else name[0] for family, name in stated.items()}


def outcome(task: str, family: str) -> float | str:
    """Return the error of the estimate, or why there is none."""
    import transformers  # noqa: PLC0415 - as above

    config = _config(transformers, task, family)
    if isinstance(config, str):
        return config

    def build() -> nn.Module:
        module: nn.Module = getattr(transformers, families(task)[family])(config)
        without_caches(module)
        return module

    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in build().parameters())
    if size > _LARGEST:
        return f"has {size:,} parameters"
    subject = Subject(build=build, samples=_SAMPLES, length=_LENGTH if task in _OF_TOKENS else None)
    try:
        with patch.object(watched, "gpu_kernels", as_with_values):
            here = estimated(subject)
        return here / real(subject) - 1
    except Exception as error:  # noqa: BLE001 - code of others: whatever it raises is told
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _config(transformers: Any, task: str, family: str) -> Any:
    """Return a config with as much of the sizes as builds, without draws; or why none does."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415 - as above

    of_family, said = CONFIG_MAPPING[family], ""
    known = vars(of_family())
    sizes = {name: size for name, size in _SIZES.items() if isinstance(known.get(name), int)}
    fewer = {name: size for name, size in sizes.items() if name in _LAYERS or name == "vocab_size"}
    for given in (sizes, fewer, {}):
        try:
            config = of_family(**given)
            with torch.device("meta"):
                getattr(transformers, families(task)[family])(config)
        except Exception as error:  # noqa: BLE001 - as above
            said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        for name, value in vars(config).items():
            if _DRAWS.search(name) and isinstance(value, float):
                setattr(config, name, 0.0)
        return config
    return said


def _serve(task: str, family: str, answers: Any) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    answers.put(outcome(task, family))


def _asked(task: str, family: str) -> float | str:
    """Return the outcome from a process of its own: what a family leaves behind goes with it."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=_serve, args=(task, family, answers))
    process.start()
    process.join(_PATIENCE_S)
    process.kill()
    process.join()
    return f"ended with {process.exitcode}" if answers.empty() else answers.get()


def main() -> None:
    """Print a line for each family, and what the errors come to."""
    errors: list[float] = []
    without: Counter[str] = Counter()
    for task in sys.argv[1:] or TASKS:
        for family in families(task):
            found = _asked(task, family)
            print(
                f"{task:12} {family:28} {found if isinstance(found, str) else f'{found:+.1%}'}", flush=True
            )
            if isinstance(found, str):
                without[found.partition(":")[0] if ":" in found else "too large"] += 1
            else:
                errors.append(abs(found))
    within = sum(error <= GOAL for error in errors)
    typical, worst = statistics.median(errors), max(errors)
    print(f"median {typical:.1%}, {within} of {len(errors)} within {GOAL:.0%}, worst {worst:.1%}")
    print("without an answer:", ", ".join(f"{count} {why}" for why, count in without.most_common()))


if __name__ == "__main__":
    main()
