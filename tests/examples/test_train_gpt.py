"""The example trains, in both forms, and the forms are one line apart."""

from __future__ import annotations

import difflib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from runtime.ranks import script_on_ranks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PARALLEL, SINGLE = EXAMPLES / "train_gpt.py", EXAMPLES / "train_gpt_single.py"
DOCSTRING = re.compile(r'\A""".*?"""', re.DOTALL)

PLAN = """schema = "parastrat.plan/1"

[plan]
pp = 1
dp_replicate = 1
dp_shard = 2
cp = 1
tp = 1
ep = 1
shard = "parameters"
micro_batch_size = 4
gradient_accumulation_steps = 1
precision = "fp32"
backend = "gloo"
"""


@pytest.fixture(scope="module")
def single() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt_single", SINGLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses(printed: str) -> list[float]:
    return [
        float(loss) for loss in re.findall(r"^step \d+ loss (\d+\.\d{4})$", printed, flags=re.MULTILINE)
    ]


def test_the_forms_differ_in_one_line_and_its_import() -> None:
    single, parallel = (
        DOCSTRING.sub("", path.read_text(encoding="utf-8")).splitlines() for path in (SINGLE, PARALLEL)
    )
    lines = difflib.unified_diff(single, parallel, lineterm="", n=0)
    changed = [line for line in lines if re.match(r"[+-](?![+-])", line) and line[1:].strip()]
    assert changed == [
        "+import parastrat",
        "-    model = build()",
        "+    model, loader = parastrat.auto_parallelize(build), parastrat.shard_dataloader(loader)",
    ]


def test_single_form_trains_without_parastrat() -> None:
    blocked = "import runpy, sys; sys.modules['parastrat'] = None; del sys.argv[0]; "
    code = blocked + "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(SINGLE), *["--steps", "12", "--batch", "16", "--seq-len", "64"]],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    printed = losses(done.stdout)
    assert printed[-1] < printed[0] - 1
    assert re.search(r"^weights equal on 1 rank: [0-9a-f]{16}$", done.stdout, flags=re.MULTILINE)


@pytest.mark.slow
def test_parallel_form_trains_on_two_ranks_with_equal_weights(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    shown = script_on_ranks(2, PARALLEL, "--steps", "12", "--seq-len", "64", PARASTRAT_PLAN=str(plan))
    printed = losses(shown)
    assert printed[-1] < printed[0] - 1
    assert len(re.findall(r"^step 1 loss", shown, flags=re.MULTILINE)) == 1
    assert re.search(r"^weights equal on 2 ranks: [0-9a-f]{16}$", shown, flags=re.MULTILINE)


def test_builds_on_the_meta_device_with_tied_weights(single: ModuleType) -> None:
    with torch.device("meta"):
        model = single.build()
        logits = model(single.sample_inputs(2, 16).to("meta"))
    assert logits.shape == (2, 16, 256)
    assert model.head.weight is model.embedding.weight
    assert 1_000_000 < sum(parameter.numel() for parameter in model.parameters()) < 3_000_000
    assert list(model.buffers()) == []


def test_starts_at_the_loss_of_knowing_nothing(single: ModuleType) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (4, 65))
    loss = single.loss_of(single.build()(tokens[:, :-1]), tokens[:, 1:])
    assert loss.item() == pytest.approx(5.545, abs=0.3)  # ln 256


def test_no_token_sees_what_follows_it(single: ModuleType) -> None:
    torch.manual_seed(0)
    model = single.build()
    tokens = torch.randint(256, (1, 32))
    other = tokens.clone()
    other[:, 20:] = 7
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_one_block_tells_the_order_of_earlier_tokens(single: ModuleType) -> None:
    torch.manual_seed(0)
    block = single.Block(0.0)
    tokens = torch.randn(1, 8, single.WIDTH)
    swapped = tokens[:, [1, 0, 2, 3, 4, 5, 6, 7]]
    assert not torch.allclose(block(tokens)[:, -1], block(swapped)[:, -1], atol=1e-5)


def test_rotation_depends_on_the_distance_alone(single: ModuleType) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(32), torch.randn(32)
    products = single.rotated(query.expand(16, 32)) @ single.rotated(key.expand(16, 32)).T
    torch.testing.assert_close(products[3, 1], products[12, 10])
    assert not torch.allclose(products[3, 1], products[3, 2])


def test_text_is_the_same_each_time_and_held_out_text_is_not_in_it(single: ModuleType) -> None:
    train, held_out = single.standard_library()
    assert (train, held_out) == single.standard_library()
    assert len(train) > 4 * len(held_out) > 0
    assert held_out[:200] not in train


def test_a_window_is_followed_by_itself_one_byte_on(single: ModuleType) -> None:
    windows = single.Windows(b"abcdefghij", 4)
    assert len(windows) == 2
    inputs, targets = windows[1]
    assert bytes(inputs.tolist()) == b"efgh"
    assert bytes(targets.tolist()) == b"fghi"
