# ruff: noqa: INP001, T201 - a script
"""Write profiles/formats from the sources of the readers, as scripts/data/formats.toml says.

Usage: python scripts/make_formats.py [--accelerate CHECKOUT] [--deepspeed CHECKOUT] [--torchtitan CHECKOUT]
           [--trainjob CHECKOUT] [--pytorchjob CHECKOUT] [--megatron CHECKOUT] [--nccl CHECKOUT]
           [--torch FOLDER]

Checkouts may be bare repositories; torch is the installed package unless a folder is named. The formats of
the given checkouts are written (that of scripts needs accelerate, DeepSpeed, NCCL and Slurm). What changes
is printed: keys that came, went, or are of another kind.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import format_sources
import tomli_w
from format_sources import Checkout, choices, nccl_variables, torch_variables

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "scripts" / "data" / "formats.toml"
FOLDER = ROOT / "profiles" / "formats"
_READERS = (
    "fields",
    "removed",
    "arguments",
    "texts",
    "words",
    "parameters",
    "lookups",
    "defaults",
    "definition",
    "flags",
    "options",
    "slurm",
)
_PROJECTS = ("accelerate", "deepspeed", "torchtitan", "trainjob", "pytorchjob", "megatron", "nccl", "slurm")
#: what a table says of itself
_STATED = (
    "name",
    "command",
    "module",
    "prefix",
    "separator",
    "unknown",
    "abbreviated",
    "short",
    "renamed",
)
_PLACE = re.compile(r"(?P<lower>lower )?(?P<place>\S+\.py:[\w.]+)")


def keys_of(recipe: dict[str, Any], checkout: Checkout) -> dict[str, str]:
    """Return a table's keys with their kinds."""
    found: dict[str, str] = {}
    for line in recipe["read"]:
        how, _, place = line.partition(" ")
        if how not in _READERS:
            raise SystemExit(f"{line}: how is one of {', '.join(_READERS)}")
        for key, kind in getattr(format_sources, how)(checkout, place).items():
            found.setdefault(key, "any" if recipe.get("lenient") else kind)
    stated = recipe.get("kinds", {})
    strays = [key for key in recipe.get("without", ()) if key not in found]
    idle = [*strays, *(stated.keys() - found.keys()), *(found.keys() & recipe.get("also", {}).keys())]
    if idle:
        raise SystemExit(f"table {recipe.get('name')!r}: the recipe is out of date about {', '.join(idle)}")
    kept = {key: kind for key, kind in found.items() if key not in recipe.get("without", ())}
    return {**kept, **stated, **recipe.get("also", {})}


def choices_of(table: dict[str, list[Any]], checkout: Checkout) -> dict[str, list[Any]]:
    """Return what keys may be, places in the source replaced by what stands there."""
    return {
        key: list(dict.fromkeys(value for entry in entries for value in _choices_at(entry, checkout)))
        for key, entries in table.items()
    }


def _choices_at(entry: Any, checkout: Checkout) -> list[Any]:
    """Return what stands at a place, in small letters where it says so; the entry itself for any other."""
    place = _PLACE.fullmatch(entry) if isinstance(entry, str) else None
    if place is None:
        return [entry]
    found = choices(checkout, place["place"])
    return [str(value).lower() for value in found] if place["lower"] else found


def table_of(name: str, recipe: dict[str, Any], sources: dict[str, Checkout]) -> dict[str, Any]:
    """Return a format's profile."""
    checkout = sources[name]
    file, _, pattern = recipe["version"].partition(":")
    match = re.search(pattern, checkout.text(file))
    if match is None:
        raise SystemExit(f"{name}: no version in {file}")
    commit = f" @{checkout.commit}" if checkout.commit else ""
    profile: dict[str, Any] = {
        "source": f"{recipe['project']}{commit} ({match[1]}): {', '.join(_files(recipe))}",
        **recipe.get("fixed", {}),
    }
    profile["choices"] = choices_of(recipe.get("choices", {}), checkout)
    for table in recipe["tables"]:
        own = choices_of(table.get("choices", {}), sources[table.get("of", name)])
        profile["choices"] |= {f"{table['name']}.{key}": values for key, values in own.items()}
    profile["tables"] = [
        _part_of(
            table, sources[table.get("of", name)], recipe.get("plugins", {}) if table.get("plugins") else {}
        )
        for table in recipe["tables"]
    ]
    if "variants" in recipe:
        profile["variants"] = [
            {
                "key": variant["key"],
                "value": variant["value"],
                "choices": choices_of(variant["choices"], checkout),
                "keys": keys_of(variant, checkout),
            }
            for variant in recipe["variants"]
        ]
    if "environment" in recipe:
        profile["environment"] = _environment(recipe["environment"], checkout, sources["nccl"])
    return profile


def _part_of(recipe: dict[str, Any], checkout: Checkout, plugins: dict[str, list[str]]) -> dict[str, Any]:
    """Return one table of a profile, with what plugins add, and the commit of another project."""
    part = {key: recipe[key] for key in _STATED if key in recipe}
    if "of" in recipe:
        place = recipe["switches"].partition(":")[0]
        part["source"] = f"{recipe['project']} @{checkout.commit}: {place}{'; plugins' if plugins else ''}"
    without_value = plugins.get("switches", [])
    keys = keys_of(recipe, checkout) | dict.fromkeys([*plugins.get("options", ()), *without_value], "text")
    switches_of = format_sources.switches
    if "letters" in recipe:
        switches_of = format_sources.slurm_switches
        part["short"] = format_sources.slurm_letters(checkout, recipe["letters"]) | part["short"]
    if "switches" in recipe:
        found = [
            option.replace("_", "-") if recipe.get("separator") == "-" else option
            for option in switches_of(checkout, recipe["switches"])
        ]
        part["switches"] = [option for option in keys if option in {*found, "help", "m", *without_value}]
    return {**part, "keys": keys}


def _files(recipe: dict[str, Any]) -> list[str]:
    """Return the files that a recipe reads, each once."""
    own = [table for table in recipe["tables"] if "of" not in table]
    lines = [line for table in [*own, *recipe.get("variants", ())] for line in table["read"]]
    return list(dict.fromkeys(line.partition(" ")[2].partition(":")[0] for line in lines))


def _environment(recipe: dict[str, Any], torch: Checkout, nccl: Checkout) -> dict[str, Any]:
    names = nccl_variables(nccl) | torch_variables(torch.path)
    stray = set(recipe["also"]) & names | set(recipe["not_read"]) - names
    if stray:
        raise SystemExit(f"variables: the recipe is out of date about {', '.join(sorted(stray))}")
    numbers = re.findall(r"NCCL_(?:MAJOR|MINOR|PATCH)\s*:= *(\d+)", nccl.text("makefiles/version.mk"))
    version = f"@{nccl.commit} ({'.'.join(numbers)})"
    return {
        "source": f"https://github.com/NVIDIA/nccl {version}: src; the torch package above; plugins",
        "prefixes": recipe["prefixes"],
        "plugins": recipe["plugins"],
        "names": sorted(names - set(recipe["not_read"]) | set(recipe["also"])),
    }


def changes(old: Any, new: Any, place: str = "") -> list[str]:
    """Return how two profiles differ, one line for each key."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [line for key in keys for line in changes(old.get(key), new.get(key), f"{place}.{key}")]
    if isinstance(old, list) and isinstance(new, list):
        if old and isinstance(old[0], dict):
            label = "name" if "name" in old[0] else "key"
            return changes({each[label]: each for each in old}, {each[label]: each for each in new}, place)
        gone = [str(value) for value in old if value not in new]
        come = [str(value) for value in new if value not in old]
        return [f"{place[1:]}: - {gone} + {come}"] if gone or come else []
    return [] if old == new else [f"{place[1:]}: {old} -> {new}"]


def main() -> None:
    """Write the files and print what changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in _PROJECTS:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument(
        "--torch", type=Path, help="the package's folder, where it is not the installed one"
    )
    given = parser.parse_args()
    spec = importlib.util.find_spec("torch")
    torch = given.torch or Path(spec.submodule_search_locations[0] if spec else "torch")
    recipes = tomllib.loads(RECIPES.read_text(encoding="utf-8"))
    checkouts = {name: getattr(given, name) for name in _PROJECTS}
    sources = {name: Checkout(path) for name, path in checkouts.items() if path is not None}
    for name, recipe in recipes.items():
        path = checkouts.get(recipe.get("checkout", name))
        if path is not None:
            sources[name] = Checkout(path, rev=recipe.get("rev", "HEAD"))
    sources["script"] = Checkout(torch)
    for name, recipe in recipes.items():
        needed = {name, *(table["of"] for table in recipe["tables"] if "of" in table)}
        if not needed | ({"nccl"} if "environment" in recipe else set()) <= sources.keys():
            continue
        profile = table_of(name, recipe, sources)
        path = FOLDER / f"{name}.toml"
        old = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for line in changes(old, profile):
            print(f"{name}: {line}")
        head = (
            f"# {recipe['title']}.\n"
            "# Written by scripts/make_formats.py from the source below and scripts/data/formats.toml.\n#\n"
            "# kind: int, natural (0 or more), positive (1 or more), port, number, bool, text, list,\n"
            "# table, any; of text: digits (a number), switch (yes, off, ...), auto; no: the false that\n"
            f"# YAML makes of it. unknown: {recipe['unknown']}.\n"
            "# prefix: may be left out of the names in a table. folded: choices whose case of letters\n"
            "# does not matter.\n\n"
        )
        path.write_text(head + tomli_w.dumps(profile), encoding="utf-8")


if __name__ == "__main__":
    main()
