"""Models of a user's own file on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.conftest import Typed

pytest.importorskip("torch")

_PRINTS = """
import torch
from torch import nn

print("imported")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        print("built")
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        print("called")
        out = self.rnn(x)[0]
        if out.sum() > 0:
            out = out[out[..., 0] > 0]
        return self.head(out)

def sample_inputs(micro_batch_size, sequence_length):
    return torch.zeros(micro_batch_size, 5, 8)
"""


def test_what_a_module_prints_is_no_part_of_the_answer(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(_PRINTS)
    done = typed("estimate", f"{file}:Net", "--on", "dgx-a100:1", "--json")
    assert done.code == 0
    assert done.answer["model"]["name"] == "Net"
    # and torch says nothing of how it looked at the module
    assert set(done.err.split()) == {"imported", "built", "called"}


def test_a_module_of_which_nothing_is_trained_is_told_so(typed: Typed, tmp_path: Path) -> None:
    """Backward's own message came, with a hint to look at the inputs."""
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\ndef build():\n"
        "    return nn.Linear(8, 8).requires_grad_(False)\n\n"
        "def sample_inputs(micro_batch_size, sequence_length):\n"
        "    return torch.zeros(micro_batch_size, 8)\n"
    )
    done = typed("recommend", f"{file}:build", "--on", "dgx-a100:1")
    assert done.code == 2
    assert done.err.startswith("error: Linear has no parameter that is trained\nhint: plan the model that")
