"""The ImageNet example: a ResNet-50, both forms, and one evaluation whatever the number of processes."""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from runtime.ranks import script_on_ranks
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from parastrat.runtime.blocks import repeated_blocks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PARALLEL, SINGLE = EXAMPLES / "imagenet.py", EXAMPLES / "imagenet_single.py"
DOCSTRING = re.compile(r'\A""".*?"""', re.DOTALL)
TINY = (
    *("--dummy", "--arch", "resnet18", "--image-size", "32", "--samples", "48", "--val-samples", "21"),
    *("--epochs", "2", "--batch-size", "16", "--warmup", "0", "--lr", "0.01", "--workers", "0"),
)
SCORES = re.compile(r"evaluation: loss (\d+\.\d{8}) top-1 (\d+) .* top-5 (\d+) .* of 21$", re.MULTILINE)

PLAN = """schema = "parastrat.plan/1"

[plan]
pp = 1
dp_replicate = {replicas}
dp_shard = {shards}
cp = 1
tp = 1
ep = 1
shard = "{shard}"
micro_batch_size = 8
gradient_accumulation_steps = 1
precision = "fp32"
backend = "gloo"
"""
STRATEGIES = {
    "ddp": {"replicas": 2, "shards": 1, "shard": "none"},
    "fsdp2": {"replicas": 1, "shards": 2, "shard": "parameters"},
}


@pytest.fixture(scope="module")
def single() -> ModuleType:
    spec = importlib.util.spec_from_file_location("imagenet_single", SINGLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_here(
    single: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    monkeypatch.setattr(sys, "argv", ["imagenet_single.py", *TINY, *arguments])
    single.main()
    return capsys.readouterr().out


def on_two_ranks(folder: Path, strategy: str, *arguments: str) -> str:
    plan = folder / f"{strategy}.toml"
    plan.write_text(PLAN.format(**STRATEGIES[strategy]))
    return script_on_ranks(2, PARALLEL, *TINY, *arguments, PARASTRAT_PLAN=str(plan))


def test_the_forms_differ_in_one_line_and_its_import() -> None:
    single, parallel = (
        DOCSTRING.sub("", path.read_text(encoding="utf-8")).splitlines() for path in (SINGLE, PARALLEL)
    )
    lines = difflib.unified_diff(single, parallel, lineterm="", n=0)
    changed = [line for line in lines if re.match(r"[+-](?![+-])", line) and line[1:].strip()]
    assert changed == [
        "+import parastrat",
        '-    model = chosen().to(torch.accelerator.current_accelerator(check_available=True) or "cpu")',
        "+    model, *loaders = parastrat.auto_parallelize(chosen), *map(parastrat.shard_dataloader, loaders)",  # noqa: E501
    ]


@pytest.mark.parametrize(
    ("arch", "parameters", "blocks"),
    # torchvision's documentation states these numbers of parameters
    [("resnet18", 11_689_512, 8), ("resnet34", 21_797_672, 16), ("resnet50", 25_557_032, 16)],
)
def test_architectures_have_the_published_parameters(
    single: ModuleType, arch: str, parameters: int, blocks: int
) -> None:
    with torch.device("meta"):
        model = single.ARCHITECTURES[arch]()
        logits = model(single.sample_inputs(2, None).to("meta"))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert repeated_blocks(model).count == blocks
    assert logits.shape == (2, 1000)


def test_the_middle_convolution_of_a_bottleneck_has_the_stride(single: ModuleType) -> None:
    with torch.device("meta"):
        first = single.build().stages[1][0]
    strides = [layer.stride for layer in first.layers if isinstance(layer, nn.Conv2d)]
    assert strides == [(1, 1), (2, 2), (1, 1)]


def test_the_learning_rate_rises_then_falls_to_zero(single: ModuleType) -> None:
    rates = [single.learning_rate(step, 100, 10, 0.4) for step in range(101)]
    assert rates[:11] == pytest.approx([0.04 * step for step in range(1, 11)] + [0.4])
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert rates[55] == pytest.approx(0.2)
    assert rates[100] == pytest.approx(0, abs=1e-12)


def test_generated_images_are_the_same_each_time(single: ModuleType) -> None:
    first, again, other = (single.Generated(12, 5, 16, seed) for seed in (3, 3, 4))
    image, target = first[7]
    assert target == 2
    assert torch.equal(image, again[7][0])
    assert not torch.equal(image, other[7][0])
    assert not torch.equal(image, first[2][0])  # of the same class
    assert (image - first[2][0]).mean().abs() < 0.2


@pytest.mark.parametrize("ranks", [2, 5])
def test_padding_is_not_counted(single: ModuleType, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = single.Generated(13, 7, 8, 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 7))
    images, targets = next(iter(DataLoader(samples, batch_size=13)))
    logits = model(images)
    with monkeypatch.context() as patch:
        patch.setattr(single, "ranks", lambda: ranks)
        padded = single.Padded(samples)
        assert len(padded) == {2: 14, 5: 15}[ranks]
        scores = single.evaluate(model, DataLoader(padded, batch_size=4), 13, torch.device("cpu"))
    assert scores.samples == 13
    assert scores.loss == pytest.approx(functional.cross_entropy(logits, targets).item(), abs=1e-6)
    assert scores.top1 == (logits.argmax(1) == targets).sum()
    assert scores.top5 == (logits.topk(5).indices == targets[:, None]).sum()
    assert scores.top1 < scores.top5 < 13
    assert model.training


def test_samples_left_out_of_an_evaluation_are_an_error(single: ModuleType) -> None:
    loader = DataLoader(single.Generated(13, 7, 8, 0), batch_size=4, drop_last=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 7))
    with pytest.raises(SystemExit, match="12 samples were evaluated of 13"):
        single.evaluate(model, loader, 13, torch.device("cpu"))


def test_cuts_stay_inside_and_vary(single: ModuleType) -> None:
    drawn = torch.Generator().manual_seed(0)
    boxes = [single.cut(500, 100, drawn) for _ in range(200)]
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 500
        assert 0 <= top < bottom <= 100
        assert 0.7 < (right - left) / (bottom - top) < 1.4
    assert len(set(boxes)) > 100
    assert single.middle(512, 256) == (144, 16, 368, 240)


def image_folder(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # the plainest picture format: 4 x 2 pixels, all red but for the last column
        (folder / name).write_bytes(b"P6 4 2 255\n" + 2 * (3 * b"\xff\x00\x00" + b"\x00\x00\xff"))
    return folder


def test_a_folder_has_a_class_in_each_folder(
    single: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(tmp_path, "train/b/1.ppm", "train/a/2.PPM", "train/a/deep/1.ppm", "val/b/3.ppm")
    (root / "train/a/notes.txt").write_text("no image")
    monkeypatch.setattr(single.importlib.util, "find_spec", lambda _name: object())
    classes = single.classes_of(root / "train")
    assert classes == ["a", "b"]
    train = single.Folder(root / "train", classes, 8, 0)
    found = {(path.relative_to(root).as_posix(), target) for path, target in train.samples}
    assert found == {("train/a/2.PPM", 0), ("train/a/deep/1.ppm", 0), ("train/b/1.ppm", 1)}
    assert [target for _, target in single.Folder(root / "val", classes, 8, None).samples] == [1]
    with pytest.raises(SystemExit, match="has b, which is no class"):
        single.Folder(root / "val", ["a"], 8, None)
    (root / "empty/a").mkdir(parents=True)
    with pytest.raises(SystemExit, match="there are no images in"):
        single.Folder(root / "empty", classes, 8, None)
    with pytest.raises(SystemExit, match=r"there is no folder .*absent"):
        single.classes_of(root / "absent")


def test_images_without_pillow_are_one_clear_message(
    single: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_folder(tmp_path, "train/a/1.ppm", "val/a/1.ppm")
    monkeypatch.setattr(single.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "argv", ["imagenet_single.py", "--data", str(root)])
    with pytest.raises(SystemExit, match="pip install pillow, or try --dummy"):
        single.main()


def test_an_image_is_read_cut_and_scaled(single: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    root = image_folder(tmp_path, "train/a/1.ppm")
    pixels, target = single.Folder(root / "train", ["a"], 8, None)[0]
    assert target == 0
    assert pixels.shape == (3, 8, 8)
    red, green, blue = (pixels * single.DEVIATION + single.MEAN)[:, 0, 0].tolist()
    assert (red, green, blue) == pytest.approx((1, 0, 0), abs=0.01)
    cut = single.Folder(root / "train", ["a"], 8, 1)
    first = cut[0][0]
    assert torch.equal(first, cut[0][0])
    cut.epoch = 1
    assert not torch.equal(first, cut[0][0])


def test_a_resumed_run_ends_where_a_whole_one_does(
    single: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = single.save

    def save_and_keep(model: object, optimizer: object, path: Path, progress: dict[str, float]) -> None:
        save(model, optimizer, path, progress)
        shutil.copy(path, path.with_name(f"{path.stem}-{progress['epochs']}.pt"))

    with monkeypatch.context() as patch:
        patch.setattr(single, "save", save_and_keep)
        whole = run_here(single, patch, capsys, "--output", str(tmp_path))
    resumed = run_here(
        single,
        monkeypatch,
        capsys,
        "--resume",
        str(tmp_path / "last-1.pt"),
        "--output",
        str(tmp_path / "r"),
    )
    lines = [re.sub(r"\d+ images/s", "", line) for line in resumed.splitlines()]
    assert lines == [re.sub(r"\d+ images/s", "", line) for line in whole.splitlines()][-len(lines) :]
    first, second = (torch.load(tmp_path / name, weights_only=True) for name in ("last.pt", "r/last.pt"))
    assert first["progress"] == second["progress"]
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])
    assert (tmp_path / "best.pt").is_file()
    with pytest.raises(SystemExit, match=r"there is no checkpoint .*absent\.pt"):
        run_here(single, monkeypatch, capsys, "--resume", str(tmp_path / "absent.pt"))


def test_single_form_learns_without_parastrat() -> None:
    blocked = "import runpy, sys; sys.modules['parastrat'] = None; del sys.argv[0]; "
    code = blocked + "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(SINGLE), *TINY, "--samples", "96", "--print-every", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d{4}) lr", done.stdout)]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 3


@pytest.mark.slow
def test_two_ranks_evaluate_as_one_process_does(
    single: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = on_two_ranks(tmp_path, "fsdp2", "--output", str(tmp_path), "--samples", "32")
    resumed = ("--evaluate", "--resume", str(tmp_path / "last.pt"))
    replicated = on_two_ranks(tmp_path, "ddp", *resumed)
    alone = run_here(single, monkeypatch, capsys, *resumed)
    in_the_end, *others = (SCORES.findall(printed)[-1] for printed in (trained, replicated, alone))
    assert len(SCORES.findall(trained)) == 2  # rank 0 alone prints
    for loss, *counts in others:
        assert counts == list(in_the_end[1:])
        assert float(loss) == pytest.approx(float(in_the_end[0]), abs=1e-6)
