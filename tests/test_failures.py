"""What a failing job prints is read for what it means, by lines as libraries print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from parastrat.failures import FAILURES, Blames, failures_in, known_failure

_TABLE = Path(__file__).parent / "data" / "failing_lines.tsv"
#: lines by what their reading must speak of; of every known failure at least one
LINES = [line.split("\t") for line in _TABLE.read_text().splitlines()[1:]]


@pytest.mark.parametrize(("spoken", "line"), LINES)
def test_lines_are_read_for_what_they_mean(spoken: str, line: str) -> None:
    failure = known_failure(line)
    assert failure is not None
    assert spoken in failure.means


def test_every_known_failure_has_a_line() -> None:
    read = {known_failure(line) for _, line in LINES}
    assert [each.means for each in FAILURES if each not in read] == []


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'labels'",
        "ValueError: expected a memory of 12 GiB",
        "node1:812:901 [0] NCCL INFO Using network Socket",
        "step 12 loss 2.31 peak memory 71.2 GiB",
    ],
)
def test_other_lines_are_not(line: str) -> None:
    assert known_failure(line) is None


def test_of_a_log_causes_come_before_what_followed() -> None:
    log = [
        "step 1\n",
        "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1\n",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.\n",
        "[rank2]: RuntimeError: Connection reset by peer\n",
    ]
    told = failures_in(log)
    assert [(each.line, each.failure.blames) for each in told] == [(3, Blames.MEMORY), (2, Blames.PEER)]
    assert told[0].text.startswith("[rank0]")
