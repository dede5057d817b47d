"""Models by the name of what builds them: every way that it can go wrong is one message."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parastrat.errors import ModelError
from parastrat.runtime.building import build_module, load_builder

GOOD = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.ReLU())

    @classmethod
    def tiny(cls):
        return cls()

def build():
    return Net()

def sample_inputs(micro_batch_size, sequence_length):
    return torch.zeros(micro_batch_size, 3)

def nothing():
    return 3

def broken():
    raise KeyError("width")

def reads():
    return nn.Linear(3, 1 + int(torch.rand(1).item()))

def stated():
    return nn.Linear(3, int(torch.linspace(1, 5, 3)[1].item()))

def halts():
    raise SystemExit(4)

WIDTH = 3
built = nn.Linear(2, 2)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "net.py"


@pytest.mark.parametrize("name", ["build", "Net", "Net.tiny"])
def test_a_file_is_built_on_the_meta_device(file: str, name: str) -> None:
    builder = load_builder(f"{file}:{name}")
    module = build_module(builder)
    assert type(module).__name__ == "Net"
    assert {parameter.device for parameter in module.parameters()} == {torch.device("meta")}
    assert builder.sample_inputs is not None
    assert builder.sample_inputs(2, None).shape == (2, 3)


def test_a_builder_may_ask_for_values_that_it_states(file: str) -> None:
    module = build_module(load_builder(f"{file}:stated"))
    assert isinstance(module, torch.nn.Linear)
    assert module.out_features == 3
    assert module.weight.is_meta


def test_a_module_by_its_dotted_name() -> None:
    builder = load_builder("torch.nn:Identity")
    assert isinstance(build_module(builder), torch.nn.Identity)
    assert builder.sample_inputs is None


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "beside_net.py").write_text("WIDTH = 7\n")
    (folder / "main.py").write_text(
        "from beside_net import WIDTH\nfrom torch import nn\nbuild = lambda: nn.Linear(WIDTH, 1)\n"
    )
    assert build_module(load_builder(f"{folder}/main.py:build")).in_features == 7


@pytest.mark.parametrize(
    ("ref", "message", "hint"),
    [
        ("net.py", "names no callable", "path.py:callable"),
        (":build", "names no callable", "path.py:callable"),
        ("missing.py:build", "there is no file missing.py in ", "path.py:callable"),
        ("no_such_package.models:build", "there is no module no_such_package", "looked for in"),
        ("torch.no_such:build", "there is no module torch.no_such", "looked for in"),
        ("net.py:biuld", "net.py has no biuld", "it defines Net, build, sample_inputs"),
        ("net.py:Net.huge", "net.py has no Net.huge", "it defines"),
        ("net.py:WIDTH", "is no callable but of type int", "nn.Module"),
        ("net.py:built", "is a model already", "def build(): return Linear(...)"),
    ],
)
@pytest.mark.usefixtures("file")
def test_what_cannot_be_imported(ref: str, message: str, hint: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_builder(ref)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(:\n", "bad.py, line 1: "),
        ("x = 1\nraise OSError('no data')\n", "importing bad.py raised OSError: no data (bad.py, line 2)"),
        ("import no_such_thing_here\n", "ModuleNotFoundError: No module named 'no_such_thing_here'"),
        ("raise SystemExit(3)\n", "SystemExit(3)"),
    ],
)
def test_files_that_fail_on_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ModelError) as caught:
        load_builder("bad.py:build")
    assert message in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "net.py:nothing returned no nn.Module but int"),
        ("broken", "net.py:broken raised KeyError: 'width' (net.py, line 23)"),
        ("reads", "cannot be built without values"),
        ("halts", "SystemExit(4)"),
    ],
)
def test_builders_that_fail(file: str, name: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_module(load_builder(f"{file}:{name}"))
    assert message in caught.value.message
    assert "\n" not in caught.value.message
