"""``parastrat profiles``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from parastrat.cli.completion import profile_words
from parastrat.errors import UsageError

if TYPE_CHECKING:
    from parastrat.profiles.catalogue import Entry, ProfileKind

_SCHEMA = "parastrat.profiles/1"

Kind = Annotated[
    str | None,
    typer.Argument(
        metavar="[KIND]",
        help="nodes, devices, models or stacks, to list them; or a NAME of any kind.",
        autocompletion=profile_words,
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="Shown with every figure, its kind and its source.",
        autocompletion=profile_words,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def profiles(kind: Kind = None, name: Name = None, *, as_json: AsJson = False) -> None:
    """List the machines, devices, models and stacks that are known, or show one with its sources."""
    from parastrat.profiles.catalogue import ProfileKind

    if kind is None:
        _list(tuple(ProfileKind), as_json)
    elif kind not in list(ProfileKind):
        if name is not None:
            raise UsageError(
                f"{kind!r} is no kind of profile", hint=f"choose from {', '.join(ProfileKind)}"
            )
        _show(_named(kind, tuple(ProfileKind)), as_json)
    elif name is None:
        _list((ProfileKind(kind),), as_json)
    else:
        _show(_named(name, (ProfileKind(kind),)), as_json)


def _list(kinds: tuple[ProfileKind, ...], as_json: bool) -> None:
    from parastrat.cli.output import paper, show, show_json
    from parastrat.profiles.catalogue import entries_of
    from parastrat.report.profile_page import list_text, summary_of

    found = {kind.value: entries_of(kind) for kind in kinds}
    if as_json:
        lists: dict[str, Any] = {
            kind: [
                {"name": entry.name, "aliases": list(entry.aliases), **summary_of(kind, entry.table)}
                for entry in entries
            ]
            for kind, entries in found.items()
        }
        show_json({"schema": _SCHEMA, **lists})
        return
    texts = [
        list_text(kind, [(entry.name, entry.aliases, entry.table) for entry in entries], paper())
        for kind, entries in found.items()
    ]
    show("\n".join(texts))


def _show(entry: Entry, as_json: bool) -> None:
    from parastrat.cli.output import paper, show, show_json
    from parastrat.report.profile_page import page_text

    if as_json:
        show_json({
            "schema": _SCHEMA,
            "kind": entry.kind.value,
            "name": entry.name,
            "aliases": list(entry.aliases),
            "profile": dict(entry.table),
        })  # fmt: skip
    else:
        show(page_text(entry.kind.value, entry.name, entry.aliases, entry.table, paper()))


def _named(name: str, kinds: tuple[ProfileKind, ...]) -> Entry:
    """Return a profile of the first of some kinds that has one of that name.

    Raises:
        UsageError: there is none; the hint has the nearest.
    """
    from parastrat.profiles import nearest
    from parastrat.profiles.catalogue import ProfileKind, all_names, entry_of

    found = next((entry for kind in kinds if (entry := entry_of(kind, name)) is not None), None)
    if found is None:
        of_any = len(kinds) > 1
        near = nearest(name, (*all_names(kinds), *(ProfileKind if of_any else ())))
        hint = f"did you mean {', '.join(near)}?" if near else "`parastrat profiles` lists all names"
        if of_any:
            hint += f" (kinds: {', '.join(ProfileKind)})"
        raise UsageError(f"there is no profile {name!r}", hint=hint)
    return found
