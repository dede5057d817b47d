"""The keys that a configuration's reader knows: unknown ones, wrong types, impossible choices."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

from parastrat.config_file import FILLED_IN, JOBS, OPEN, ConfigFormat, whole_number
from parastrat.parse.form import did_you_mean, written
from parastrat.parse.plain_values import AUTO, DIGITS, from_text
from parastrat.parse.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from parastrat.config_file import ConfigFile

_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "number": (int, float),
    "bool": (bool,),
    "text": (str,),
    "list": (list,),
    "table": (dict,),
}
#: numbers from here on, whole ones but for an amount
_LEAST = {"natural": 0, "positive": 1, "port": 0, "amount": 0}
_MOST = {"port": 65_535}
#: what argparse makes a number of an option's text with
READ_BY: Mapping[str, Callable[[str], float]] = {"int": int, "number": float}
_BARE = {"int", "number", "bool", *_LEAST}
#: what is read of text where another kind is usual; messages do not suggest it
_AS_TEXT = {"switch", DIGITS, AUTO}
#: what YAML makes of a choice that is called no
_NO = "no"
#: formats by other names than their own
_CALLED = {
    ConfigFormat.TRAINJOB: "a TrainJob",
    ConfigFormat.PYTORCHJOB: "a PyTorchJob",
    ConfigFormat.TORCHTITAN_PYTHON: "torchtitan's configurations",
}
#: how much of a misspelt option is that of what was meant: of plugins' own there are less
_MISSPELT = 0.8
#: how keys begin that are remarks, in formats without comments
_NOTES = ("_", "//", "#", "comment")
NOUNS = {
    "natural": "a whole number, 0 or more",
    "positive": "a whole number, 1 or more",
    "amount": "a number, 0 or more",
    "port": "a port, 0 to 65535",
    "int": "a whole number",
    "number": "a number",
    "bool": "true or false",
    "text": "text",
    "list": "a list",
    "table": "a table",
}


def form_problems(file: ConfigFile, known: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the form of a configuration.

    Args:
        file: what was read, with full names.
        known: the format's profile, whose comments say of what it is made.
    """
    choices = {**known["choices"], **_variant(known, file.table).get("choices", {})}
    yield from _of_missing(file, known)
    for entry in known["tables"]:
        for name in file.places(entry["name"]):
            yield from _of_table(file, known, {**entry, "name": name})
    for path, allowed in choices.items():
        exact = known.get("exact", {}).get(path, ()) if path in known.get("folded", ()) else allowed
        for place in file.places(path):
            yield from _of_choice(file, place, allowed, exact)
    for word, dash in (file.get("dashes") or {}).items():
        yield _of_dash(word, dash)
    if "environment" in known:
        yield from _of_environment(file, known["environment"])


def _of_table(file: ConfigFile, known: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[Problem]:
    name, keys = entry["name"], entry["keys"]
    table = file.get(name) if name else file.table
    if not isinstance(table, dict):
        return
    earlier = known.get("earlier", {})
    # by a module of the user's own, which nobody reads here
    extended_by = known.get("extended_by", ())
    is_extended = any(file.get(key) for key in extended_by)
    if not name:
        keys = {**keys, **_variant(known, table).get("keys", {})}
    for key in table:
        path = f"{name}.{key}" if name else key
        if key in keys or not (path in earlier or is_extended):
            yield from _of_key(file, {**entry, "keys": keys, "extended_by": extended_by}, key)
        elif path in earlier:
            yield _of_earlier(file, path, earlier[path])


def _of_earlier(file: ConfigFile, path: str, now: str) -> Problem:
    """Say what a key of earlier versions is called since, if it is called anything."""
    in_script = file.format is ConfigFormat.SCRIPT
    hint = f"write {now}" if now else "remove it; the last version of this format has nothing like it"
    noun, name = ("an option", f"--{path.rpartition('.')[2]}") if in_script else ("a key", "")
    text = f"is {noun} of earlier versions; later ones stop at it"
    return Problem(key=path, name=name, text=text, hint=hint, code="PS608")


def _of_dash(word: str, dash: str) -> Problem:
    """Say what an option begins with that a text processor has changed, or that is too short."""
    option = word.partition("=")[0]
    meant = option.lstrip(f"-{dash}")
    sign = "one hyphen" if dash == "-" else f"{unicodedata.name(dash).lower()} ({dash})"
    # torchrun takes a word with any other dash for the script's name
    mend = f"write --{meant}" + ("" if dash == "-" else "; a word without hyphens begins what is to be run")
    return Problem(
        key=f"dashes.{word}",
        name=option,
        text=f"begins with {sign}, not with two hyphens (--)",
        hint=mend,
        code="PS601",
    )


def top_keys(known: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    """Return the keys that a format knows outside its tables, for a file of this variant."""
    found = [key for entry in known["tables"] if not entry["name"] for key in entry["keys"]]
    return [*found, *_variant(known, table).get("keys", {})]


def _variant(known: Mapping[str, Any], table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a format adds for files that state a certain value."""
    for variant in known.get("variants", ()):
        if table.get(variant["key"]) == variant["value"]:
            return dict(variant)
    return {}


def _of_missing(file: ConfigFile, known: Mapping[str, Any]) -> Iterator[Problem]:
    for key in (place for pattern in known.get("required", ()) for place in file.places(pattern)):
        around, _, name = key.rpartition(".")
        table = file.get(around) if around else file.table
        if not isinstance(table, dict) or table.get(name) is not None:
            continue
        if name in table:
            yield Problem(key=key, text="is empty", hint=f"write what belongs to {name}", code="PS603")
        elif did_you_mean_any(name, table) is None:
            yield Problem(key=key, text="is missing", hint=f"add {name}", code="PS603")


def did_you_mean_any(key: str, table: Mapping[str, Any]) -> str | None:
    """Return the key of a table that is a misspelling of a key, if there is one."""
    return next((other for other in table if did_you_mean(other, [key]) is not None), None)


def _of_environment(file: ConfigFile, known: Mapping[str, Any]) -> Iterator[Problem]:
    private = file.get("private") or ()
    for name in file.get("env") or {}:
        ours = name.startswith(tuple(known["prefixes"])) and not name.startswith(tuple(known["plugins"]))
        if ours and name not in known["names"] and name not in private:
            near = did_you_mean(name, known["names"], fold=str.upper)
            hint = f"did you mean {near}?" if near else f"remove {name}"
            text = "is no variable that NCCL or torch reads"
            yield Problem(key=f"env.{name}", text=text, hint=hint, code="PS607")


def _of_key(file: ConfigFile, entry: Mapping[str, Any], key: str) -> Iterator[Problem]:
    kinds, path = entry["keys"], f"{entry['name']}.{key}" if entry["name"] else key
    if key not in kinds:
        yield from _of_unknown(file, entry, key, path)
        return
    accepted, value = kinds[key].split(" or "), file.get(path)
    if (
        value is None
        or value is OPEN
        # a tool such as envsubst often fills these in before Kubernetes reads them
        or (file.format in JOBS and isinstance(value, str) and FILLED_IN.search(value) is not None)
        or any(_is_of(kind, value, file.format) for kind in accepted if kind != DIGITS)
    ):
        return
    number = whole_number(value) if DIGITS in accepted else None
    if number is not None and any(_is_of(kind, number, file.format) for kind in accepted):
        return
    if value == AUTO and file.format is ConfigFormat.DEEPSPEED:
        return
    nouns = " or ".join(NOUNS[kind] for kind in accepted if kind in NOUNS)
    hint = f"write {nouns}"
    if isinstance(value, str) and _is_number_or_switch(value) and set(accepted) <= _BARE:
        hint = f"write {value.lower()} without quotes"
    elif file.format is ConfigFormat.SCRIPT and "int" in accepted and _is_read_by(float, value):
        hint = f"write {_whole(value)}: it reads whole numbers alone"
    elif accepted == ["text"] and isinstance(value, bool | int | float):
        word = value if not isinstance(value, bool) else "yes" if value else _NO
        hint = f"put it in quotes: {key}: '{word}'"
    name = f"--{key}" if file.format is ConfigFormat.SCRIPT else ""
    yield Problem(key=path, name=name, text=f"must be {nouns}, not {written(value)}", hint=hint)


def _of_unknown(file: ConfigFile, entry: Mapping[str, Any], key: str, path: str) -> Iterator[Problem]:
    ignored = entry["unknown"] == "ignored"
    if ignored and key.startswith(_NOTES):
        return
    if entry["unknown"] == "plugins":
        yield _of_plugins(entry, key, path)
        return
    near = entry.get("renamed", {}).get(key) or did_you_mean(key, list(entry["keys"]))
    name, text = (
        "",
        "is not read by anybody" if ignored else f"is no key of {_CALLED.get(file.format, file.format)}",
    )
    hint = f"did you mean {near}?" if near else "remove it; there is no such key here"
    if file.format is ConfigFormat.SCRIPT:
        hint = f"did you mean --{near}?" if near else "remove it, or put it behind the script's name"
        text, name = f"is no option of {entry['command']}", _option(key)
    elif not near and entry.get("extended_by"):
        hint = f"remove it, or name the module that adds it in {entry['extended_by'][0]}"
    yield Problem(key=path, name=name, text=text, hint=hint, code="PS606" if ignored else "PS601")


def _of_plugins(entry: Mapping[str, Any], key: str, path: str) -> Problem:
    """Say that a command does not know an option: a misspelt one, or one that a plugin may add."""
    near = did_you_mean(key, list(entry["keys"]), alike=_MISSPELT)
    # a beginning that several have
    near = near or next((known for known in entry["keys"] if len(key) > 1 and known.startswith(key)), None)
    name, text = _option(key), f"is no option of {entry['command']}"
    if near is not None:
        return Problem(key=path, name=name, text=text, hint=f"did you mean --{near}?", code="PS601")
    hint = "remove it, unless a plugin of the cluster's Slurm adds it"
    return Problem(key=path, name=name, text=f"{text} itself", hint=hint, code="PS609")


def _option(key: str) -> str:
    """Return an option as a command takes it: a letter behind one hyphen, a word behind two."""
    return f"--{key}" if len(key) > 1 else f"-{key}"


def _whole(text: str) -> str:
    """Return a number in digits; a place for it where it is none that is whole."""
    number = float(text)
    return f"{number:.0f}" if number.is_integer() else "one"


def _is_number_or_switch(text: str) -> bool:
    return text.lower() in ("true", "false") or text.replace(".", "", 1).isdecimal()


def _is_of(kind: str, value: Any, format_: ConfigFormat) -> bool:
    if kind == "any":
        return True
    if format_ is ConfigFormat.SCRIPT and kind in READ_BY:
        return FILLED_IN.search(value) is not None or _is_read_by(READ_BY[kind], value)
    if kind in _AS_TEXT:
        return from_text(kind, value) is not None
    if kind == _NO:
        return value is False
    if isinstance(value, bool):
        return kind == "bool"
    if kind in _LEAST:
        is_number = _is_of("number" if kind == "amount" else "int", value, format_)
        return is_number and bool(_LEAST[kind] <= value <= _MOST.get(kind, value))
    if kind == "int" and isinstance(value, float):
        return value.is_integer() and format_ is ConfigFormat.DEEPSPEED  # 5e8, as bucket sizes are written
    return isinstance(value, _TYPES[kind])


def _is_read_by(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _of_choice(file: ConfigFile, path: str, choices: list[Any], exact: Sequence[Any]) -> Iterator[Problem]:
    value, same = file.get(path), {str(choice).lower(): choice for choice in choices}
    is_script = file.format is ConfigFormat.SCRIPT
    if (
        value is None
        or value is OPEN
        or value == AUTO
        or (is_script and FILLED_IN.search(str(value)) is not None)
        or isinstance(value, dict | list)
        or (value is False and _NO in same)
    ):
        return
    meant = same.get(str(value).lower())
    if str(value) in map(str, choices) or (meant is not None and meant not in exact):
        return
    near = did_you_mean(str(value), list(same))
    hint = f"did you mean {same[near]}?" if near else f"write one of {', '.join(map(str, choices))}"
    name = f"--{path.partition('.')[2]}" if is_script else ""
    yield Problem(key=path, name=name, text=f"cannot be {written(value)}", hint=hint)
