"""What the shell offers behind a flag: names that begin as the word at the cursor.

A shell asks in a new process at every press of the key: only what is needed is imported, never torch.
Where nothing begins so, bash offers files, as plan files and models may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from parastrat.errors import ParastratError

_AUTO = "auto"
#: devices of a node that are offered behind a device's name; any number may be written
_PER_NODE = 8


def model_words(incomplete: str) -> list[str]:
    """Return the presets; where none begins so, their other names, of which some are a table's alone."""
    from parastrat.profiles.catalogue import ProfileKind, aliases_of, profile_names

    own = _begun(incomplete, lambda: profile_names(ProfileKind.MODELS))
    return own or _begun(incomplete, lambda: aliases_of(ProfileKind.MODELS))


def hardware_words(incomplete: str) -> list[str]:
    """Return the nodes, and the devices with a number of them."""
    from parastrat.profiles.catalogue import ProfileKind, all_names

    return _begun(
        incomplete,
        lambda: (
            _AUTO,
            *all_names((ProfileKind.NODES,)),
            *(f"{name}x{_PER_NODE}" for name in all_names((ProfileKind.DEVICES,)) if name != "cpu"),
        ),
    )


def stack_words(incomplete: str) -> list[str]:
    """Return the software stacks."""
    from parastrat.profiles.catalogue import ProfileKind, all_names

    return _begun(incomplete, lambda: all_names((ProfileKind.STACKS,)))


def target_words(incomplete: str) -> list[str]:
    """Return what plans are written for."""
    from parastrat.emit import Target

    return _begun(incomplete, lambda: tuple(target.value for target in Target))


def profile_words(incomplete: str) -> list[str]:
    """Return the kinds of profiles and the names of all."""
    from parastrat.profiles.catalogue import ProfileKind, all_names

    return _begun(incomplete, lambda: (*(kind.value for kind in ProfileKind), *all_names()))


def rule_words(incomplete: str) -> list[str]:
    """Return the codes of the rules, in lower case where they are begun so: ``explain`` takes both."""
    from parastrat.rules import RULES

    written = str.lower if incomplete.islower() else str
    return _begun(incomplete, lambda: tuple(written(rule.code) for rule in RULES))


def choice_words(choices: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion of a flag with few choices."""
    known = tuple(choices)

    def words(incomplete: str) -> list[str]:
        return _begun(incomplete, lambda: known)

    return words


def _begun(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names that begin so, in order; none where the names cannot be read."""
    try:
        return sorted(name for name in names() if name.startswith(incomplete))
    except ParastratError:  # a broken installation is no reason to write over the command line
        return []
