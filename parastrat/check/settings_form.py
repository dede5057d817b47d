"""The form of the checker's own settings: unknown keys, codes of no rule, ignores without a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.parse.form import did_you_mean, written
from parastrat.parse.problems import Problem
from parastrat.rules import RULES
from parastrat.rules.codes import code_prefix, nearest_codes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KEYS = ("select", "ignore", "on", "model")
_PATHS = "paths"
#: words of other checkers, and of our own reports
_MEANT = {
    "hardware": "on",
    "target": "on",
    "target-hardware": "on",
    "target_hardware": "on",
    "extend-select": "select",
    "extend-ignore": "ignore",
    "per-path": _PATHS,
    "per-path-ignores": _PATHS,
    "per-file-ignores": _PATHS,
    "per_path_ignores": _PATHS,
}
_SAMPLES = {"on": 'on = "dgx-h100:8"', "model": 'model = "llama-3.1-8b"'}
_REASON = 'ignore = { PS201 = "measured: 3 % slower, accepted" }'


def neighbour_problems(whole: Mapping[str, Any], *, is_own: bool) -> Iterator[Problem]:
    """Yield tables that nobody reads: a mistyped ``check`` would be passed over in silence.

    Args:
        whole: the file.
        is_own: it is parastrat.toml, where everything is ours.
    """
    tool = whole.get("tool", {})
    ours = tool.get("parastrat", {}) if isinstance(tool, dict) else {}
    if not isinstance(ours, dict):
        yield _wrong("tool.parastrat", "a table", ours, "write [tool.parastrat.check] and its keys below")
    else:
        yield from _strangers(ours, "tool.parastrat.", ("check",))
    if is_own:
        yield from _strangers(whole, "", ("check", "tool"))


def _strangers(table: Mapping[str, Any], place: str, known: tuple[str, ...]) -> Iterator[Problem]:
    for key in table:
        if key not in known:
            hint = f"did you mean [{place}check]?" + (" It has this key" if key in _KEYS else "")
            yield Problem(key=place + key, text="is not read by parastrat", hint=hint)


def setting_problems(table: Any, name: str) -> Iterator[Problem]:
    """Yield what is wrong with a table of settings.

    Args:
        table: what stands in the file.
        name: of the table, dotted.
    """
    yield from _of_table(table, name, (*_KEYS, _PATHS))
    paths = table.get(_PATHS, {}) if isinstance(table, dict) else {}
    if not isinstance(paths, dict):
        yield _wrong(
            f"{name}.{_PATHS}", "a table", paths, f'write [{name}.{_PATHS}."configs/old"] and keys below'
        )
        return
    for pattern, more in paths.items():
        key = f"{name}.{_PATHS}.{pattern}"
        yield from _of_table(more, key, _KEYS)
        if pattern.startswith(("/", "../", "~")):
            yield Problem(
                key=key,
                text="is no path below the settings' folder",
                hint="write it relative to the folder of this file, such as configs/*.json",
            )


def _of_table(table: Any, name: str, keys: tuple[str, ...]) -> Iterator[Problem]:
    if not isinstance(table, dict):
        yield _wrong(name, "a table", table, f"write [{name}] and its keys below")
        return
    for key, value in table.items():
        full = f"{name}.{key}"
        if key not in keys:
            near = _MEANT.get(key) or did_you_mean(key, list(keys))
            hint = f"did you mean {near}?" if near in keys else f"it has {', '.join(keys)}"
            yield Problem(key=full, text="is no setting of the checker", hint=hint)
        elif key == "select":
            yield from _of_select(full, value)
        elif key == "ignore":
            yield from _of_ignore(full, value)
        elif key != _PATHS and not (isinstance(value, str) and value.strip()):
            yield _wrong(full, "text", value, f"write {_SAMPLES[key]}")


def _of_select(key: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, list) or not all(isinstance(code, str) for code in value):
        yield _wrong(key, "a list of codes", value, 'write select = ["PS2", "PS501"]')
    elif not value:
        yield Problem(
            key=key, text="is empty: no rule would be left", hint="remove it to have all the rules"
        )
    else:
        for index, code in enumerate(value):
            yield from code_problems(code, f"{key}.{index}")


def _of_ignore(key: str, value: Any) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield _wrong(key, "a table of codes with reasons", value, f"write {_REASON}")
        return
    for code, reason in value.items():
        yield from code_problems(code, f"{key}.{code}")
        if not isinstance(reason, str) or not reason.strip():
            yield Problem(
                key=f"{key}.{code}", text="has no reason", hint=f"say why in quotes, as in {_REASON}"
            )


def code_problems(code: str, key: str) -> Iterator[Problem]:
    """Yield a problem where no rule's code begins so."""
    codes = [rule.code for rule in RULES]
    prefix = code_prefix(code)
    if len(prefix) > 1 and any(known.startswith(prefix) for known in codes):
        return
    near = nearest_codes(prefix, codes)
    hint = f"did you mean {', '.join(near)}?" if near else "`parastrat explain` lists all codes"
    yield Problem(key=key, text=f"is {written(code)}, which is no rule's code", hint=hint)


def _wrong(key: str, noun: str, value: Any, hint: str) -> Problem:
    return Problem(key=key, text=f"must be {noun}, not {written(value)}", hint=hint)
