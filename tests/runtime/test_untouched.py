"""Tables that a forward keeps: a trace leaves none of its own, and stages make theirs."""

from __future__ import annotations

import functools
import gc
from collections import OrderedDict, deque
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional

import parastrat
from parastrat.errors import ParastratError
from parastrat.runtime import untouched as untouched_module
from parastrat.runtime.tracing.fakes import fake_module
from parastrat.runtime.untouched import untouched

#: filled by forwards
TABLES: dict[int, torch.Tensor] = {}
LAST: torch.Tensor | None = None


@functools.lru_cache(maxsize=4)
def bounded(size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32)


@functools.cache
def paired(size: int) -> tuple[torch.Tensor, int]:
    return torch.arange(size, dtype=torch.float32), size


class Tables:
    """An object that is no module."""

    def __init__(self) -> None:
        self.held: dict[str, list[torch.Tensor]] = {"held": []}


class Keeping(nn.Module):
    """A layer that keeps what it computed once, in one of many ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.up = way, nn.Linear(8, 8)
        self.table: torch.Tensor | None = None
        self.by_size: dict[int, torch.Tensor] = OrderedDict()
        self.row: deque[torch.Tensor] = deque()
        self.tables = Tables()
        self.register_buffer("buffered", None)

    def kept(self, size: int) -> torch.Tensor:  # noqa: C901, PLR0911 - one branch a way
        global LAST  # noqa: PLW0603 - code that does so is what is tested
        made = functools.partial(torch.arange, size, dtype=torch.float32)
        if self.way == "attribute":
            self.table = made() if self.table is None else self.table
            return self.table
        if self.way == "new attribute":
            if not hasattr(self, "lazily"):
                self.lazily = made()
            return self.lazily
        if self.way == "buffer":
            self.buffered = made() if self.buffered is None else self.buffered
            return self.buffered
        if self.way == "mapping":
            return self.by_size.setdefault(size, made())
        if self.way == "row":
            if not self.row:
                self.row.append(made())
            return self.row[0]
        if self.way == "object":
            if not self.tables.held["held"]:
                self.tables.held["held"].append(made())
            return self.tables.held["held"][0]
        if self.way == "globals":
            return TABLES.setdefault(size, made())
        if self.way == "global":
            LAST = made() if LAST is None else LAST
            return LAST
        return bounded(size) if self.way == "lru_cache" else paired(size)[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.up(x) + self.kept(x.shape[-1]))


WAYS = (
    *("attribute", "new attribute", "buffer", "mapping", "row"),
    *("object", "globals", "global", "lru_cache", "cache"),
)


class Chain(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Keeping(way) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def forget() -> None:
    global LAST  # noqa: PLW0603 - as above
    LAST = None
    TABLES.clear()
    bounded.cache_clear()
    paired.cache_clear()


@pytest.mark.parametrize("way", WAYS)
def test_a_trace_leaves_no_table(way: str) -> None:
    forget()
    module, mode = Keeping(way), FakeTensorMode(allow_non_fake_inputs=True)
    names = list(vars(module))
    with fake_module(module, mode, torch.float32), mode:
        module(torch.zeros(2, 8)).sum().backward()
        assert isinstance(module.kept(8), FakeTensor)
    assert list(vars(module)) == names
    found = module.kept(8)
    assert not isinstance(found, FakeTensor)
    assert found.tolist() == list(range(8))
    forget()


@pytest.mark.parametrize("way", WAYS)
def test_tables_that_were_there_stay(way: str) -> None:
    forget()
    module = Keeping(way)
    before = module.kept(8)
    with untouched(module):
        assert module.kept(8) is before
    assert module.kept(8) is before
    forget()


def test_a_cached_function_that_the_collector_was_told_to_leave_alone() -> None:
    forget()
    gc.freeze()
    with untouched(Keeping("lru_cache")), FakeTensorMode():
        assert isinstance(bounded(8), FakeTensor)
    assert not isinstance(bounded(8), FakeTensor)
    forget()


def test_what_other_code_caches_stays() -> None:
    forget()
    before = bounded(4)
    with untouched(Keeping("attribute")):
        bounded(5)
    assert bounded.cache_info().currsize == 2
    assert bounded(4) is before
    forget()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return torch.randn(4, 8, generator=drawn), torch.tensor([0, 1, 2, 0])


def losses(axes: dict[str, int]) -> dict[str, float]:
    found = {}
    x, y = batch()
    for way in WAYS:
        forget()
        torch.manual_seed(0)
        chosen = plan(gradient_accumulation_steps=2, **axes)
        model = parastrat.auto_parallelize(Chain(way), plan=chosen, sample_inputs=x[:2])
        found[way] = parastrat.forward_backward(model, x, y, loss_fn=functional.cross_entropy).item()
    return found


@pytest.mark.slow
def test_stages_make_their_own_tables() -> None:
    x, y = batch()
    torch.manual_seed(0)
    expected = functional.cross_entropy(Chain("attribute")(x), y).item()
    for found in on_ranks(2, losses, {"pp": 2}):
        assert found == dict.fromkeys(WAYS, pytest.approx(expected, abs=1e-6))


def told(*, cut: bool) -> str:
    """What ranks say of a table that is left as the model is cut, or as a batch is followed."""
    forget()
    x, y = batch()
    chosen = plan(gradient_accumulation_steps=2, pp=2)
    unseen = patch.object(untouched_module, "_LIBRARIES", (__name__.partition(".")[0],))
    try:
        with unseen if cut else nullcontext():
            model = parastrat.auto_parallelize(Chain("globals"), plan=chosen, sample_inputs=x[:2])
        with unseen:
            parastrat.forward_backward(model, x, y, loss_fn=functional.cross_entropy)
    except ParastratError as error:
        return error.message
    return ""


def told_as_it_is_cut() -> str:
    return told(cut=True)


def told_as_it_trains() -> str:
    return told(cut=False)


@pytest.mark.slow
def test_a_table_that_nobody_could_see_is_told_and_no_rank_waits() -> None:
    for message in on_ranks(2, told_as_it_is_cut):
        assert message.startswith("Chain's code keeps a table, outside of its file, that was made when")
    for message in on_ranks(2, told_as_it_trains):
        assert "returned a tensor without values" in message
