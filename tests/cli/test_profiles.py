"""``parastrat profiles``: what is known, and where from."""

from __future__ import annotations

import pytest
from cli.conftest import Typed

from parastrat.profiles import device_names, model_names, node_names, profiles_root, stack_names
from parastrat.profiles.catalogue import ProfileKind, entries_of
from parastrat.profiles.files import read_profile

NAMES = {"nodes": node_names(), "devices": device_names(), "models": model_names(), "stacks": stack_names()}


@pytest.mark.parametrize("kind", NAMES)
def test_every_profile_of_a_kind_is_on_a_line_of_its_own(typed: Typed, kind: str) -> None:
    done = typed("profiles", kind)
    assert done.code == 0
    first = [line.split()[0] for line in done.out.splitlines()[2:] if not line.startswith("    ")]
    assert tuple(first) == NAMES[kind]


@pytest.mark.parametrize("kind", NAMES)
def test_a_list_fits_eighty_columns(typed: Typed, kind: str) -> None:
    assert max(map(len, typed("profiles", kind).out.splitlines())) <= 80


@pytest.mark.parametrize("name", ["torch", "a100-sxm4-80", "h100-sxm5"])
def test_labels_do_not_touch_what_stands_beside_them(typed: Typed, name: str) -> None:
    lines = typed("profiles", name).out.splitlines()
    facts = [line for line in lines if line[:2] == "  " != line[2:4] and not line.startswith("  also ")]
    assert len(facts) > 10
    assert all(line[29:30] == " " for line in facts)


def test_all_kinds_are_listed_without_one(typed: Typed) -> None:
    out = typed("profiles").out
    assert [out.count(f"\n{title}, for") for title in ("Devices", "Models", "Stacks")] == [1, 1, 1]
    assert out.startswith("Nodes, for --on NAME:N")


def test_other_names_stand_below(typed: Typed) -> None:
    lines = typed("profiles", "nodes").out.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("  p5.48xlarge "))
    assert lines[place + 1] == "    also aws-p5.48xlarge, p5"


def test_lists_as_json(typed: Typed) -> None:
    answer = typed("profiles", "--json").answer
    assert answer["schema"] == "parastrat.profiles/1"
    assert {kind: tuple(entry["name"] for entry in answer[kind]) for kind in NAMES} == NAMES
    node = next(entry for entry in answer["nodes"] if entry["name"] == "gb200-nvl72")
    assert (node["devices_per_node"], node["scale_up_devices"], node["network"]) == (4, 72, "infiniband")
    device = next(entry for entry in answer["devices"] if entry["name"] == "t4")
    assert (device["format"], device["peak_tflops"]) == ("fp16", 65)
    layers = {entry["name"]: entry["layers"] for entry in answer["models"]}
    assert (layers["resnet-50"], layers["convnext-t"], layers["gpt2"]) == (16, 18, 12)
    # as recommend counts them
    assert (layers["t5-3b"], layers["whisper-large-v3-turbo"]) == (48, 36)


@pytest.mark.parametrize(("name", "encoder", "decoder"), [("t5-3b", 24, 24), ("whisper-turbo", 32, 4)])
def test_an_encoder_and_its_decoder_are_both_told(
    typed: Typed, name: str, encoder: int, decoder: int
) -> None:
    lines = [" ".join(line.split()) for line in typed("profiles", name).out.splitlines()]
    assert [line for line in lines if line.startswith("layers ")] == [
        f"layers {encoder} encoder + {decoder} decoder"
    ]
    (listed,) = [
        line for line in typed("profiles", "models").out.splitlines() if f" {lines[0].split()[0]} " in line
    ]
    assert f" {encoder} + {decoder} " in listed


@pytest.mark.parametrize(
    ("arguments", "kind", "name"),
    [
        (("p5",), "nodes", "p5.48xlarge"),
        (("h100",), "devices", "h100-sxm5"),
        (("gpt2",), "models", "gpt2"),
        (("gpt-1000b",), "models", "megatron-1t"),
        (("models", "Llama_3.1 8B"), "models", "llama-3.1-8b"),
        (("torch",), "stacks", "torch"),
        (("cpu",), "nodes", "cpu"),
        (("devices", "cpu"), "devices", "cpu"),
    ],
)
def test_one_profile_is_shown_whole(typed: Typed, arguments: tuple[str, ...], kind: str, name: str) -> None:
    answer = typed("profiles", *arguments, "--json").answer
    file = read_profile(kind, name)
    assert file is not None
    assert (answer["kind"], answer["name"], answer["profile"]) == (kind, name, file.table)
    shown = typed("profiles", *arguments)
    assert shown.out.startswith(f"{name} ({kind.removesuffix('s')})\n")


def test_every_figure_has_its_kind_and_source_beside_it(typed: Typed) -> None:
    lines = typed("profiles", "dgx-h100").out.splitlines()
    place = lines.index("Inside")
    assert lines[place + 3].split() == ["nominal", "450", "GB/s", "derived"]
    assert lines[place + 4].strip() == "NVIDIA H100 datasheet: NVLink 4, 18 links of 25 GB/s"
    assert lines[place + 5].split() == ["achieved", "362", "GB/s", "derived"]


@pytest.mark.parametrize(("name", "memory"), [("h100-sxm5", "81,559 MiB"), ("dgx-h100", "2,048 GiB")])
def test_memory_and_its_bandwidth_have_labels_of_their_own(typed: Typed, name: str, memory: str) -> None:
    lines = [" ".join(line.split()) for line in typed("profiles", name).out.splitlines()]
    (size,) = [line for line in lines if line.startswith("memory ") and "bandwidth" not in line]
    assert size.startswith(f"memory {memory} ")
    assert [line.split()[3] for line in lines if line.startswith("memory bandwidth ")] == ["GB/s"]


@pytest.mark.parametrize("kind", ProfileKind)
def test_no_two_figures_of_a_part_have_one_label(typed: Typed, kind: ProfileKind) -> None:
    for entry in entries_of(kind):
        seen: set[str] = set()
        for line in typed("profiles", kind, entry.name).out.splitlines():
            if not line.startswith(" "):
                seen.clear()
            elif line[2:3] != " ":
                assert line[:30] not in seen, (entry.name, line)
                seen.add(line[:30])


@pytest.mark.parametrize("kind", ProfileKind)
def test_every_page_can_be_written_and_holds_every_source(typed: Typed, kind: ProfileKind) -> None:
    for entry in entries_of(kind):
        out = " ".join(typed("profiles", kind, entry.name).out.split())
        for section in entry.table.values():
            for figure in section.values() if isinstance(section, dict) else ():
                if isinstance(figure, dict) and "source" in figure:
                    assert " ".join(figure["source"].split()) in out, entry.name


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("h101",), "no profile 'h101'", "h100"),
        (("dgx-h10",), "no profile 'dgx-h10'", "dgx-h100"),
        (("node",), "no profile 'node'", "nodes"),
        (("devices", "dgx-h100"), "no profile 'dgx-h100'", "h100"),
        (("stack", "torch"), "'stack' is no kind", "nodes, devices, models, stacks"),
        (("zzzzzz",), "no profile 'zzzzzz'", "lists all names (kinds: nodes, devices, models, stacks)"),
        (("aliases",), "no profile 'aliases'", ""),
        (("../README",), "no profile '../README'", ""),
        (("",), "no profile ''", "lists all names"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(
    typed: Typed, arguments: tuple[str, ...], message: str, hint: str
) -> None:
    done = typed("profiles", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert hint in done.err.partition("hint:")[2]


def test_the_folder_is_where_the_names_come_from() -> None:
    files = {path.stem for path in (profiles_root() / "nodes").glob("*.toml")} - {"aliases"}
    assert set(NAMES["nodes"]) == files
