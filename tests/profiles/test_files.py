"""Profiles of a broken installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from parastrat import profiles
from parastrat.errors import ProfileError
from parastrat.profiles import files


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("nodes", "devices", "curves", "attention", "stacks"):
        (tmp_path / folder).mkdir()
    source = profiles.profiles_root()
    curves = ("curves/h100-sxm5", "attention/h100-sxm5")
    for name in ("nodes/dgx-h100", "devices/h100-sxm5", *curves, "stacks/torch"):
        (tmp_path / f"{name}.toml").write_text((source / f"{name}.toml").read_text(encoding="utf-8"))
    monkeypatch.setattr(files, "profiles_root", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "fault"),
    [
        ("nodes/dgx-h100", None, "", "is empty"),
        ("nodes/dgx-h100", None, "= 3", "is not TOML"),
        ("nodes/dgx-h100", 'device = "h100-sxm5"', 'device = "h1"', "device 'h1' is not in profiles"),
        ("nodes/dgx-h100", "devices_per_node = 8", "", "devices_per_node and scale_up.devices"),
        ("nodes/dgx-h100", 'kind = "nvswitch"', 'kind = "wire"', "'wire' is not a valid FabricKind"),
        ("nodes/dgx-h100", "latency_us", "latency_ms", "scale_up.latency_us is missing"),
        ("nodes/dgx-h100", "all_reduce_gain", "all_reduce_gains", "unknown key scale_up.all_reduce_gains"),
        ("devices/h100-sxm5", "memory_mib = ", "memory = ", "figures.memory_mib is missing"),
        ("devices/h100-sxm5", "power_w = ", "power_kw = ", "unknown key figures.power_kw"),
        ("devices/h100-sxm5", 'kind = "measured"', 'kind = "known"', "kind must be one of measured"),
        ("devices/h100-sxm5", "value = 81559", 'value = "many"', "memory_mib must be a number"),
        ("devices/h100-sxm5", "value = 81559, ", "", "memory_mib must be { value, kind, source }"),
        ("devices/h100-sxm5", 'curve = "h100-sxm5"', 'curve = "h1"', "curve 'h1' is not in profiles"),
        ("devices/h100-sxm5", 'name = "h100-sxm5"', "name = 5", "name must be a text"),
        ("curves/h100-sxm5", "ceiling", "ceilin", "matmul.ceiling is missing"),
        ("attention/h100-sxm5", "rows_half", "rows_halves", "second.rows_half is missing"),
    ],
)
def test_a_malformed_profile_names_file_and_key(
    root: Path, name: str, old: str | None, new: str, fault: str
) -> None:
    path = root / f"{name}.toml"
    text = path.read_text(encoding="utf-8")
    assert old is None or old in text
    path.write_text(new if old is None else text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        profiles.load_hardware("dgx-h100")
    assert fault in caught.value.message
    assert path.name in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("dp_overlap", "dp_overlop", "dp_overlop"),
        ('"eager"', '"lazy"', "lazy"),
        ("time_spread", "spread", "spread"),
    ],
)
def test_a_malformed_stack_names_file_and_key(root: Path, old: str, new: str, fault: str) -> None:
    path = root / "stacks/torch.toml"
    text = path.read_text(encoding="utf-8").replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        profiles.load_stack("torch")
    assert fault in caught.value.message
    assert "torch.toml" in caught.value.message


def test_a_profile_that_changed_is_read_again(root: Path) -> None:
    before = files.read_profile("stacks", "torch")
    assert before is not None
    same = files.read_profile("stacks", "torch")
    assert same is not None
    assert same.table is before.table
    (root / "stacks/torch.toml").write_text("name = 'another'", encoding="utf-8")
    after = files.read_profile("stacks", "torch")
    assert after is not None
    assert after.table == {"name": "another"}
