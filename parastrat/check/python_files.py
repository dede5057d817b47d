"""Python files: the configurations of torchtitan that their functions return."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.check.checked import Checked, of_problem, of_syntax, ordered
from parastrat.check.configs import check_config
from parastrat.check.recognition import KNOWN, is_torchtitans_python
from parastrat.config_file import ConfigFormat
from parastrat.errors import ConfigError
from parastrat.parse.config_text import ConfigSyntaxError
from parastrat.parse.python_source import read_source
from parastrat.parse.torchtitan_calls import call_problems
from parastrat.parse.torchtitan_python import python_configs
from parastrat.profiles.files import read_format

if TYPE_CHECKING:
    from pathlib import Path

    from parastrat.check.known import Given
    from parastrat.finding import Finding

#: a word of earlier versions
_EARLIER = "PS608"


def check_python(path: Path, lines: tuple[str, ...], text: str, given: Given) -> Checked:
    """Check each configuration of a file; what is said of one is not said of those that begin with it.

    Raises:
        ConfigError: it has none.
    """
    format_ = ConfigFormat.TORCHTITAN_PYTHON
    known = read_format(format_.value)
    try:
        source = read_source(text)
    except ConfigSyntaxError as error:
        return Checked(path=path, format=None, findings=(of_syntax(path, error),), lines=lines)
    configs = tuple(python_configs(source, known))
    if not (configs or is_torchtitans_python(source, known)):
        raise ConfigError(
            f"{path} has no function that returns a configuration of torchtitan's", hint=KNOWN
        )
    made = {config.function for config in configs if config.is_made}
    problems = tuple(call_problems(source, known, made))
    found = [of_problem(path, problem) for problem in problems]
    if any(problem.code == _EARLIER for problem in problems):
        # written for another version, whose defaults are others
        configs = tuple(python_configs(source, known, of_now=False))
    unknown: list[str] = []
    said: dict[str, set[tuple[str, str]]] = {}
    for config in configs:
        checked = check_config(path, lines, config.file, given)
        before = set().union(*(said.get(base, set()) for base in config.bases))
        found += [each for each in checked.findings if _words(each) not in before]
        said[config.function] = {_words(each) for each in checked.findings}
        unknown += checked.open
    return Checked(
        path=path,
        format=format_,
        findings=ordered(list(dict.fromkeys(found))),
        lines=lines,
        open=tuple(dict.fromkeys(unknown)),
    )


def _words(found: Finding) -> tuple[str, str]:
    return found.code, found.message
