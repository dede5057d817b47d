"""Forwards and backwards of a module on fake tensors, watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map

from parastrat.errors import ModelError, ValuesError
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.building import described
from parastrat.runtime.caches import caches_off
from parastrat.runtime.precision import COMPUTE, weight_dtype
from parastrat.runtime.tensors.leaves import in_format, tree_tensors
from parastrat.runtime.tracing.answers import Answers
from parastrat.runtime.tracing.budget import Budget
from parastrat.runtime.tracing.division import Division
from parastrat.runtime.tracing.example_loss import loss_of, read_by_loss
from parastrat.runtime.tracing.fake_mode import FakeMode
from parastrat.runtime.tracing.fakes import constant_names, fake_input, fake_module, gpu_kernels
from parastrat.runtime.tracing.known import NEEDS_VALUES
from parastrat.runtime.tracing.tables import settle_tables
from parastrat.runtime.tracing.tracker import Tracker
from parastrat.runtime.tracing.twins import two_of_a_kind, unequal
from parastrat.workload import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What traces are made for."""

    precision: Precision
    #: weights and inputs are in fp32, and autocast casts what products read
    autocast: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The format of weights and activations in the forward; that of fp8 is bf16 between matmuls."""
        if self.precision is Precision.FP8:
            return torch.bfloat16
        return COMPUTE.get(self.precision, weight_dtype(self.precision))

    @property
    def weights(self) -> torch.dtype:
        return torch.float32 if self.autocast else self.dtype

    @property
    def casting(self) -> torch.autocast:
        """What a forward runs in."""
        return torch.autocast("cpu", self.dtype, enabled=self.autocast)

    @property
    def loss_in_fp32(self) -> bool:
        return self.precision not in (Precision.FP32, Precision.BF16)


def watched_steps(
    module: nn.Module,
    batches: Sequence[Any],
    setting: Setting,
    answers: Answers | None = None,
    division: Division | None = None,
    held: Mapping[str, torch.Tensor] | None = None,
) -> list[Tracker]:
    """Run a forward and backward of each batch on fake tensors; the module is as before afterwards.

    Args:
        module: on any device.
        batches: each a tensor, tuple or dict of tensors: real ones, whose whole numbers are known, or on
            the meta device.
        setting: the number format. Weights and inputs are in the compute format, as FSDP2 runs mixed
            precision, unless autocast is asked for; buffers keep theirs.
        answers: to what the forward asks of values; None: it must not ask.
        division: what tensor parallelism would divide; None: nothing.
        held: values of buffers that are known, by name.

    Raises:
        ModelError: the forward cannot run without values, or raises.
    """
    mode = FakeMode()
    values = [None if held is None else held.get(name) for name in constant_names(module)]
    with (
        caches_off(module),
        fake_module(module, mode, setting.weights) as (parameters, constants),
        gpu_kernels(),
    ):
        with mode:
            fakes = [tree_map(fake_input, each) for each in batches]

        def told(batch: Any, given: Any) -> Tracker:
            tracker = Tracker(parameters, constants, answers, casts=setting.autocast, division=division)
            tracker.known.tell(batch, given)
            tracker.known.tell(constants, values)
            return tracker

        def watched(batch: Any, given: Any) -> Tracker:
            tracker = told(batch, given)
            _watch(module, batch, setting, tracker, mode)
            if unequal(tracker):
                tracker, reached = told(batch, given), tracker.behind.reached_segments
                for parameter in parameters.values():
                    parameter.grad = None
                _watch(module, batch, setting, tracker, mode, reached)
            gradients = {
                name: weight.grad for name, weight in parameters.items() if weight.grad is not None
            }
            tracker.end(gradients, tree_tensors(batch))
            for parameter in parameters.values():
                parameter.grad = None
            return tracker

        trackers = list(map(watched, fakes, batches))
        if any(tracker.path != trackers[0].path for tracker in trackers):
            # a first forward may make tables, which later ones find
            first, budget = told(fakes[0], batches[0]), Budget(type(module).__name__)
            with mode, first, explained(module), torch.no_grad(), setting.casting, budget:
                _called(module, fakes[0], setting)
            trackers = list(map(watched, fakes, batches))
    settle_tables(trackers)
    return trackers


def _watch(
    module: nn.Module,
    batch: Any,
    setting: Setting,
    tracker: Tracker,
    mode: FakeMode,
    reached: AbstractSet[int] = frozenset(),
) -> None:
    hooks = torch.autograd.graph.saved_tensors_hooks(tracker.saved, tracker.wanted)
    with _segments(module, tracker, reached), mode, tracker, explained(module), hooks:
        # a training loop's variable holds what the model returned while backward runs
        with setting.casting, Budget(type(module).__name__):
            output = _called(module, batch, setting)
        read = read_by_loss(output)
        loss = loss_of(read, in_fp32=setting.loss_in_fp32)
        tracker.begin_backward(output, own_loss=loss is read[0])
        del read
        torch.autograd.backward(loss)
        del output


def _called(module: nn.Module, given: Any, setting: Setting) -> Any:
    """Call a module with a batch in its weights' format; the training loop's own stays beside it."""
    batch = in_format(given, setting.weights)
    if isinstance(batch, Mapping):
        return module(**batch)
    return module(*batch) if isinstance(batch, tuple | list) else module(batch)


@contextmanager
def _segments(module: nn.Module, tracker: Tracker, reached: AbstractSet[int]) -> Iterator[None]:
    """Tell the tracker when a repeated block begins and ends."""
    blocks = repeated_blocks(module)

    def entering(name: str) -> Callable[..., None]:
        return lambda _block, args, kwargs: tracker.enter(name, (args, kwargs))

    def leaving(_block: nn.Module, _args: Any, _output: Any) -> None:
        tracker.leave()

    with ExitStack() as stack:
        for name, block in zip(blocks.names, blocks.modules, strict=True):
            before = block.register_forward_pre_hook(entering(name), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(block.register_forward_hook(leaving).remove)
        stack.enter_context(two_of_a_kind(blocks, tracker, reached))
        yield


@contextmanager
def explained(module: nn.Module) -> Iterator[None]:
    """Turn what stops a forward without values into one message."""
    name = type(module).__name__
    try:
        yield
    except ModelError:
        raise
    except NEEDS_VALUES as error:
        raise ValuesError(
            f"{name}.forward depends on values at {error.func}: {_place(error)}",
            hint="tracing knows shapes only: replace `if tensor`, .item(), .tolist(), nonzero and "
            "tensor[mask] by torch.where or a mask that multiplies, or estimate a preset of the same size",
        ) from error
    except UnsupportedOperatorException as error:
        raise ModelError(
            f"{name}.forward uses {error.func}, which does not say what shape it returns",
            hint="register it: torch.library.register_fake",
        ) from error
    except Exception as error:  # user code may raise anything; the message quotes it
        raise ModelError(
            f"{name}.forward raised {described(error)}",
            hint="check the inputs: sample_inputs(micro_batch_size, sequence_length) beside the builder, "
            "and --seq-len",
        ) from error


def _place(error: BaseException) -> str:
    text = described(error)
    return text[text.rfind("(") + 1 : -1] if text.endswith(")") else "in the forward"
