"""Every model class of the installed transformers that can be built small and called: nobody chose them."""

from __future__ import annotations

import functools
import inspect
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from parity_inputs import VOCAB, calls, inputs_of
from parity_models import Batch, Subject
from parity_recipes import LARGEST, LARGEST_OF_OWN, OWN_SHRINKS, SHRINKS, Recipe, loss, shrunk, trial
from torch import nn

#: auto classes whose models are taken; a class counts once
_TASKS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)
STEPS = 5
#: behind the name of a class: with its own vocabulary, and widths as large as may be tried
OWN = ", own sizes"
_STEPS_OF_OWN = 2
#: what a model says that may be called in evaluation mode
_TRAINING = re.compile(r"it draws|[Tt]raining")


def names() -> list[str]:
    """Return the classes: one of each family, by the first task that has it, then the others.

    Each in a shuffled order that is always the same, so that the first so many are a sample.
    """
    shuffled = random.Random(0)  # noqa: S311 - a sample, no secret
    firsts = list(dict.fromkeys(next(iter(models)) for models in _families().values()))
    others = list(dict.fromkeys(name for models in _families().values() for name in models))
    shuffled.shuffle(firsts)
    shuffled.shuffle(others)
    return list(dict.fromkeys([*firsts, *others]))


def names_with_experts() -> list[str]:
    """Return the classes in whose modules there are experts, in the same order."""
    return [name for name in names() if _has_experts(name)]


def _has_experts(name: str) -> bool:
    import transformers  # noqa: PLC0415 - only where it is asked for

    module = inspect.getmodule(getattr(transformers, name, None))
    return (
        module is not None
        and re.search(r"^class \w*Experts\b", inspect.getsource(module), re.MULTILINE) is not None
    )


@functools.cache
def _families() -> dict[str, dict[str, str]]:
    """Return each family's model classes, each with the class of its config."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - only where it is asked for
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # noqa: PLC0415

    found: dict[str, dict[str, str]] = {}
    for task in _TASKS:
        for family, stated in getattr(modeling_auto, task).items():
            model = stated if isinstance(stated, str) else stated[0]
            # the trunk of a family that was taken with a head is the same model once more
            trunk_again = task == "MODEL_MAPPING_NAMES" and family in found
            if family in CONFIG_MAPPING_NAMES and not trunk_again:
                found.setdefault(family, {}).setdefault(model, CONFIG_MAPPING_NAMES[family])
    return found


def recipe_of(name: str, shrinks: Iterable[str] = ()) -> Recipe | str:
    """Return how to build, in one of these ways, and call a class, or why nothing that was tried does.

    Args:
        name: of a class; with ``OWN`` behind it, in sizes that the others have not.
        shrinks: what is tried; those of the table if empty.
    """
    reasons: list[str] = []
    own = name.endswith(OWN)
    least, most = (LARGEST, LARGEST_OF_OWN) if own else (0, LARGEST)
    for shrink in shrinks or (OWN_SHRINKS if own else SHRINKS):
        try:
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in built(name, shrink).parameters())
            if not least <= size <= most:
                reasons.append(f"has {size:,} parameters")
                continue
            module = built(name, shrink)
        except Exception as error:  # noqa: BLE001 - models that nobody chose may raise anything
            reasons.append(said(error))
            continue
        for inputs in calls(type(module)):
            recipe = Recipe(shrink=shrink, inputs=inputs)
            found = tried(module, recipe, functools.partial(_batch, name, recipe))
            if isinstance(found, Recipe):
                return found
            reasons.append(found)
    return "; ".join(dict.fromkeys(reasons)) or "no inputs known for its forward"


def tried(module: nn.Module, recipe: Recipe, batch: Callable[[int, int], Batch]) -> Recipe | str:
    """Return the recipe, in evaluation mode where it must be, or why it cannot be compared elsewhere."""
    reason = _reason(module.train(), batch)
    if _TRAINING.search(reason):
        recipe = replace(recipe, evaluated=True)
        reason = _reason(module.eval(), batch) and reason
    return reason or recipe


def _reason(module: nn.Module, batch: Callable[[int, int], Batch]) -> str:
    """Return why a call cannot be compared with itself elsewhere, or an empty text."""
    try:
        return trial(module, *batch(0, 2))
    except Exception as error:  # noqa: BLE001 - models that nobody chose may raise anything
        return said(error)


def said(error: Exception) -> str:
    """Return an error's kind and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def subject(name: str, recipe: Recipe) -> Subject:
    """Return a class as a subject; building or calling it may raise anything."""
    return Subject(
        name=name,
        build=lambda: built(name, recipe.shrink).train(not recipe.evaluated),
        batch=functools.partial(_batch, name, recipe),
        loss_fn=loss,
        steps=_STEPS_OF_OWN if name.endswith(OWN) else STEPS,
    )


def config_of(name: str, shrink: str) -> Any:
    """Return a class's config, shrunk."""
    import transformers  # noqa: PLC0415 - only where it is asked for

    name = name.removesuffix(OWN)
    own = getattr(transformers, name).config_class  # a text model's, where its family names a larger one
    stated = next(models[name] for models in _families().values() if name in models)
    return shrunk((own or getattr(transformers, stated))(), (SHRINKS | OWN_SHRINKS)[shrink])


def built(name: str, shrink: str) -> nn.Module:
    """Return a module of a class, shrunk, without caches and dropout."""
    import transformers  # noqa: PLC0415 - only where it is asked for

    module: nn.Module = getattr(transformers, name.removesuffix(OWN))(config_of(name, shrink))
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


def _batch(name: str, recipe: Recipe, step: int, samples: int) -> Batch:
    draw = torch.Generator().manual_seed(step)
    config = config_of(name, recipe.shrink)
    own = recipe.shrink in OWN_SHRINKS
    vocabulary = getattr(config.get_text_config(), "vocab_size", VOCAB) if own else VOCAB
    inputs = inputs_of(config, recipe.inputs, samples, draw, vocabulary)
    return inputs, torch.rand(samples, generator=draw) + 0.5
