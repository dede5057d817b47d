"""Activation checkpointing, block by block."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch._guards import TracingContext
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
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
from parastrat.runtime.tensors.buffers import (
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

_UNCOMPILED = (
    "blocks run uncompiled: where its graph breaks, torch.compile gives up on a forward of which a part is "
    "computed again (TORCH_LOGS=graph_breaks tells where); with --recompute full it compiles what it can"
)

#: as ``explain_wrapping`` shows them
_CONTEXTS = ", context_fn=<create_selective_checkpoint_contexts over parastrat.runtime.recompute.KEPT>"

#: names for profilers that FSDP2 gives what it does, which it need not do again where weights are gathered
_NAMING = frozenset(
    {
        torch.ops.profiler._record_function_enter_new.default,  # noqa: SLF001
        torch.ops.profiler._record_function_exit._RecordFunction,  # noqa: SLF001
    }
)


def recomputing(block: nn.Module, policy: Recompute) -> nn.Module:
    """Return the block with its policy; state_dict keys stay as they were.

    Buffers that a forward changes move once for each sample, and are as they were where it is repeated.

    Args:
        block: changed in place, or held by what is returned.
        policy: of the plan.
    """
    if policy is Recompute.NONE:
        return block
    if policy is Recompute.ATTENTION:
        replace_forward(block, _recomputing_attention)
        return block
    wrapped: nn.Module = checkpoint_wrapper(
        block,
        checkpoint_impl=CheckpointImpl.NO_REENTRANT,
        preserve_rng_state=True,
        context_fn=_contexts_of(
            block, _selective_contexts if policy is Recompute.SELECTIVE else noop_context_fn
        ),
    )
    return wrapped


def recompute_in_graph(block: nn.Module) -> None:
    """Let what torch.compile makes of a block's forward compute a part of it again, as selective recompute.

    In a graph, buffers change in its forward alone. Where a compiler gives up, all runs uncompiled: that
    is told, once.

    Args:
        block: changed in place.
    """
    uncompiled = _contexts_of(block, _selective_contexts)

    def contexts() -> _Contexts:
        # torch 2.11 does not tell by torch.compiler.is_compiling() here
        if TracingContext.try_get() is not None:
            return _selective_contexts()
        warnings.warn(_UNCOMPILED, stacklevel=2)
        return uncompiled()

    def around(forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def under_checkpoint(*args: Any, **kwargs: Any) -> Any:
            return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

        return under_checkpoint

    replace_forward(block, around)


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


def recompute_call(policy: Recompute, names: tuple[str, ...]) -> str:
    """Return the policy in plain torch, as ``explain_wrapping`` shows it."""
    if policy is Recompute.ATTENTION:
        return f"# scaled_dot_product_attention under torch.utils.checkpoint in each of {names}"
    return (
        f"for name in {names}:\n"
        f"    model.set_submodule(name, checkpoint_wrapper(model.get_submodule(name)"
        f"{_CONTEXTS if policy is Recompute.SELECTIVE else ''}))"
    )


def recompute_in_graph_call(names: tuple[str, ...]) -> str:
    """Return what ``recompute_in_graph`` does in plain torch, as ``explain_wrapping`` shows it."""
    return (
        f"for block in map(model.get_submodule, {names}):\n"
        f"    block.forward = partial(checkpoint, block.forward, use_reentrant=False{_CONTEXTS})"
    )


def replace_module(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put ``module`` in the place that ``name`` has under ``root``."""
    parent, _, key = name.rpartition(".")
    root.get_submodule(parent).register_module(key, module)


def _contexts_of(block: nn.Module, policy: _MakeContexts) -> _MakeContexts:
    """Return what makes the contexts that a block's forward and its recomputation run in."""
    if norms_with_statistics(block):
        policy = partial(_counting_once, block, policy)
    if has_changing_buffers(block):
        policy = partial(_replaying, Replayed(block), policy)
    return policy


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
