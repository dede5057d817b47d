"""Activation checkpointing, block by block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    _CHECKPOINT_PREFIX,
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from parastrat.errors import WrapError
from parastrat.plan import Recompute
from parastrat.runtime.precision import replace_forward
from parastrat.runtime.training.buffers import (
    Replayed,
    has_changing_buffers,
    norms_with_statistics,
    still_statistics,
)

_ATEN = torch.ops.aten

_Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
_MakeContexts = Callable[[], _Contexts]

#: matrix multiplies; every second one is computed again, as torchtitan does: half of the memory for a
#: sixth of the forward
MATMULS = frozenset({_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default})
#: operators that cost much and whose output is small: always kept. Experts' grouped products are computed
#: again: as many times larger as a token has experts
KEPT = frozenset(
    {
        _ATEN.convolution.default,
        _ATEN._scaled_dot_product_flash_attention.default,  # noqa: SLF001  (operators have no public names)
        _ATEN._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
        _ATEN._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
    }
)

#: names for profilers that FSDP2 gives what it does, which it need not do again where weights are gathered
_NAMING = frozenset(
    {
        torch.ops.profiler._record_function_enter_new.default,  # noqa: SLF001
        torch.ops.profiler._record_function_exit._RecordFunction,  # noqa: SLF001
    }
)


def recomputing(block: nn.Module, policy: Recompute, *, keeps: bool = True) -> nn.Module:
    """Return the block with its policy; state_dict keys stay as they were.

    Args:
        block: changed in place, or held by what is returned.
        policy: of the plan.
        keeps: buffers that a forward changes move once for each sample, and are as they were when it is
            computed again; torch.compile follows no such contexts, and ``guard_buffers`` is to see to it.
    """
    if policy is Recompute.NONE:
        return block
    if policy is Recompute.ATTENTION:
        replace_forward(block, _recomputing_attention)
        return block
    keywords: dict[str, Any] = {"checkpoint_impl": CheckpointImpl.NO_REENTRANT, "preserve_rng_state": True}
    contexts = _selective_contexts if policy is Recompute.SELECTIVE else None
    if keeps and norms_with_statistics(block):
        contexts = partial(_counting_once, block, contexts or noop_context_fn)
    if keeps and has_changing_buffers(block):
        contexts = partial(_replaying, Replayed(block), contexts or noop_context_fn)
    if contexts is not None:
        keywords["context_fn"] = contexts
    wrapped: nn.Module = checkpoint_wrapper(block, **keywords)
    return wrapped


def guard_attention(blocks: Sequence[nn.Module]) -> None:
    """Let the first forward fail in which no attention core of these blocks came under a checkpoint.

    A block that computes attention otherwise (``nn.MultiheadAttention``, plain matrix multiplies) would
    keep everything, and the plan's memory would be wrong.
    """
    before = _CheckpointAttention.calls

    def check(*_: Any) -> None:
        handle.remove()
        if _CheckpointAttention.calls == before:
            raise WrapError(
                "recompute = attention saves nothing here: no block calls scaled_dot_product_attention",
                hint="plan with --recompute selective or full, or give it attn_implementation='sdpa'",
            )

    # behind the last of them, not behind the model: a pipeline's rank has stages without blocks too
    handle = blocks[-1].register_forward_hook(check)


def guard_buffers(model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
    """Let a forward fail that changes a buffer of these blocks, of which a compiler computes a part again.

    It follows no contexts in which the buffer would change once.

    Args:
        model: that has the blocks; hooks that change buffers before a forward are there already.
        blocks: by name.
    """

    def held() -> dict[str, tuple[torch.Tensor, int]]:
        return {
            f"{name}.{key}".replace(_CHECKPOINT_PREFIX, ""): (buffer, buffer._version)  # noqa: SLF001  (no public counter)
            for name, block in blocks.items()
            for key, buffer in block.named_buffers()
        }

    begun = held()

    def before(*_: Any) -> None:
        begun.update(held())

    def after(*_: Any) -> None:
        for name, (buffer, version) in held().items():
            if buffer is not begun[name][0] or version != begun[name][1]:
                raise WrapError(
                    f"compiled blocks with recompute = selective change the buffer {name!r} twice a step",
                    hint="plan with --recompute full, or for a --stack that does not compile",
                )

    if begun:
        model.register_forward_pre_hook(before)
        model.register_forward_hook(after)


def recompute_call(policy: Recompute, names: tuple[str, ...]) -> str:
    """Return the policy in plain torch, as ``explain_wrapping`` shows it."""
    if policy is Recompute.ATTENTION:
        return f"# scaled_dot_product_attention under torch.utils.checkpoint in each of {names}"
    contexts = ", context_fn=<create_selective_checkpoint_contexts over parastrat.runtime.recompute.KEPT>"
    return (
        f"for name in {names}:\n"
        f"    model.set_submodule(name, checkpoint_wrapper(model.get_submodule(name)"
        f"{contexts if policy is Recompute.SELECTIVE else ''}))"
    )


def replace_module(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put ``module`` in the place that ``name`` has under ``root``."""
    parent, _, key = name.rpartition(".")
    root.get_submodule(parent).register_module(key, module)


def _counting_once(block: nn.Module, policy: _MakeContexts) -> _Contexts:
    """Leave running statistics alone while the block is computed again."""
    forward, again = policy()
    return forward, _within(again, still_statistics(block))


def _replaying(replayed: Replayed, policy: _MakeContexts) -> _Contexts:
    """Let buffers change once."""
    forward, again = policy()
    noticing, given = replayed.contexts()
    # outside of what looks at operators
    return _within(noticing, forward), _within(given, again)


@contextmanager
def _within(*contexts: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _selective_contexts() -> _Contexts:
    contexts: _Contexts
    # torch counts every operator of a block, and asks for as many when it is computed again
    SAC_IGNORED_OPS.update(_NAMING)
    seen: dict[bool, int] = defaultdict(int)  # forward and recomputation count apart
    contexts = create_selective_checkpoint_contexts(partial(_selected, seen))  # type: ignore[no-untyped-call]
    return contexts


def _selected(
    seen: dict[bool, int], context: Any, operator: Any, *_args: Any, **_kwargs: Any
) -> CheckpointPolicy:
    if operator in MATMULS:
        seen[context.is_recompute] += 1
        keep = seen[context.is_recompute] % 2 == 1
    else:
        keep = operator in KEPT
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


class _CheckpointAttention(TorchFunctionMode):
    """Runs every attention core under its own checkpoint: keeps queries, keys and values only."""

    #: attention cores that came by, in all models
    calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is scaled_dot_product_attention:
            _CheckpointAttention.calls += 1
            if torch.is_grad_enabled():
                return checkpoint(_attended, *args, use_reentrant=False, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attended(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Attend by the function's name, so that a dry run's kernels are found again in backward."""
    return functional.scaled_dot_product_attention(*args, **kwargs)


def _recomputing_attention(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def under_checkpoints(*args: Any, **kwargs: Any) -> Any:
        with _CheckpointAttention():
            return forward(*args, **kwargs)

    return under_checkpoints
