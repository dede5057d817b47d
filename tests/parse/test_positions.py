from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from parastrat.parse.positions import key_positions

TRICKY = '''\
top = "a # no comment" # a comment
text = """
[not.a.table]
no = 'key' \\
"""
lines = [ # first
  "x", { inner = 1, "quoted key" = [2, 3] },
]
a.b . c = 1

[ table . "sub key" ]
  'literal' = "\\"]"

[[many]]
x = 1
[[many]]
x = 2
[many.deep]
y = {z = {w = 3}}
'''


def leaves(value: Any, path: tuple[str, ...] = ()) -> set[str]:
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        found = {inner for name, item in items for inner in leaves(item, (*path, str(name)))}
        return found | ({".".join(path)} if path else set())
    return {".".join(path)}


def test_every_key_has_its_place() -> None:
    found = key_positions(TRICKY)
    # keys that a dotted key or header only passes through have no place of their own
    assert leaves(tomllib.loads(TRICKY)) - set(found) == {"a", "a.b", "table"}
    lines = TRICKY.splitlines()
    for key, (line, column) in found.items():
        name = key.rpartition(".")[2]
        if not name.isdigit() and not lines[line - 1].startswith("["):
            assert name in lines[line - 1][column - 1 :], key
    assert found["top"] == (1, 1)
    assert found["lines"] == (6, 1)
    assert found["lines.1.quoted key.1"] == (7, 40)
    assert found["a.b.c"] == (9, 1)
    assert found["table.sub key.literal"] == (12, 3)
    assert found["many.1.x"] == (17, 1)
    assert found["many.1.deep.y.z.w"] == (19, 11)


def test_line_ends_of_windows_do_not_count_twice() -> None:
    assert key_positions("a = 1\r\n\r\nb = 2\r\n") == {"a": (1, 1), "b": (3, 1)}


def test_every_key_of_a_plan_file_has_its_place() -> None:
    text = (Path(__file__).parents[1] / "emit" / "golden" / "plan.toml").read_text(encoding="utf-8")
    assert leaves(tomllib.loads(text)) - set(key_positions(text)) == set()
