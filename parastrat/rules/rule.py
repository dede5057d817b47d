"""What a rule is: one condition, one message, and the reason that it teaches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from parastrat.finding import Finding, Severity

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.config_file import ConfigFile, ConfigFormat
    from parastrat.finding import Hit
    from parastrat.units import Mask

Condition: TypeAlias = "Callable[[Columns], Mask]"
Wording: TypeAlias = "Callable[[Case], Hit]"
Judgement: TypeAlias = "Callable[[Case], Hit | None]"
Reading: TypeAlias = "Callable[[ConfigFile], Iterator[Hit]]"


# there is one value for each rule, so that none needs to be compared or hashed by its fields
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guidance:
    """Advice that no case shows by itself; ``explain`` and the rules' page tell it."""

    code: str
    severity: Severity
    #: what the rule demands, one sentence
    title: str
    #: why; general, without a case's numbers
    rationale: str
    #: https address of the source
    url: str
    #: collected pitfalls (``PITnnn``) that the rule catches
    covers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanRule(Guidance):
    """A rule over columns; search rejects what one of severity ``error`` fires on.

    The condition reads columns with operators alone, so that it judges one plan or a million.
    """

    condition: Condition
    #: holds the message once it is declared, right below the condition
    _wording: list[Wording] = field(default_factory=list, repr=False)

    def mask(self, columns: Columns) -> Mask:
        """Return where the rule fires.

        Raises:
            UnknownFactError: a column that the condition reads is unknown.
        """
        return self.condition(columns)

    def message(self, wording: Wording) -> Wording:
        """Declare what the rule says of a case that it fires on."""
        if self._wording:
            raise TypeError(f"{self.code} has a message already")
        self._wording.append(wording)
        return wording

    def hit(self, case: Case) -> Hit:
        """Return what the rule says of a case that it fires on.

        Raises:
            UnknownFactError: the message needs a fact that nobody stated.
        """
        (wording,) = self._wording
        return wording(case)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CaseRule(Guidance):
    """A rule about network, launcher or environment: it sees one case and never runs in search."""

    judge: Judgement

    def hit(self, case: Case) -> Hit | None:
        """Return what the rule says of a case, or None.

        Raises:
            UnknownFactError: the case lacks a fact that the rule needs.
        """
        return self.judge(case)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileRule(Guidance):
    """A rule about a config file of one format, or some, as it is written; only the checker runs it."""

    formats: tuple[ConfigFormat, ...]
    read: Reading

    def hits(self, file: ConfigFile) -> Iterator[Hit]:
        """Yield what the rule says of a file of its formats, place by place."""
        if file.format in self.formats:
            yield from self.read(file)


Rule: TypeAlias = PlanRule | CaseRule | FileRule | Guidance


def plan_rule(
    code: str, severity: Severity, *, source: str, covers: tuple[str, ...] = ()
) -> Callable[[Condition], PlanRule]:
    """Make a plan rule of a condition; its docstring is title and rationale."""

    def make(condition: Condition) -> PlanRule:
        title, rationale = _teaching(condition)
        return PlanRule(
            code=code,
            severity=severity,
            title=title,
            rationale=rationale,
            url=source,
            covers=covers,
            condition=condition,
        )

    return make


def case_rule(
    code: str, severity: Severity, *, source: str, covers: tuple[str, ...] = ()
) -> Callable[[Judgement], CaseRule]:
    """Make a case rule of a judgement; its docstring is title and rationale."""

    def make(judge: Judgement) -> CaseRule:
        title, rationale = _teaching(judge)
        return CaseRule(
            code=code,
            severity=severity,
            title=title,
            rationale=rationale,
            url=source,
            covers=covers,
            judge=judge,
        )

    return make


def file_rule(
    code: str,
    severity: Severity,
    *formats: ConfigFormat,
    source: str,
    covers: tuple[str, ...] = (),
) -> Callable[[Reading], FileRule]:
    """Make a file rule of a generator of hits; its docstring is title and rationale."""

    def make(read: Reading) -> FileRule:
        title, rationale = _teaching(read)
        return FileRule(
            code=code,
            severity=severity,
            title=title,
            rationale=rationale,
            url=source,
            covers=covers,
            formats=formats,
            read=read,
        )

    return make


def guidance(
    code: str, *, source: str, severity: Severity = Severity.INFO, covers: tuple[str, ...] = ()
) -> Callable[[Callable[[], None]], Guidance]:
    """Make a rule of a docstring alone; the function below it is never called."""

    def make(topic: Callable[[], None]) -> Guidance:
        title, rationale = _teaching(topic)
        return Guidance(
            code=code, severity=severity, title=title, rationale=rationale, url=source, covers=covers
        )

    return make


def finding(rule: Guidance, hit: Hit) -> Finding:
    """Join a hit with its rule's own facts."""
    return Finding(code=rule.code, severity=rule.severity, message=hit.message, fix=hit.fix, url=rule.url)


def _teaching(function: Callable[..., object]) -> tuple[str, str]:
    """Return a docstring's first line and the rest, paragraphs as single lines."""
    title, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n")
    paragraphs = (" ".join(paragraph.split()) for paragraph in rest.split("\n\n"))
    return title.rstrip("."), "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
