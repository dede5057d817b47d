"""The one family of errors: a message for the user and what to do about it."""

from __future__ import annotations

from typing import Any


class ParastratError(Exception):
    """A failure the user can act on.

    ``hint`` says what to change. The command line prints both lines and exits with ``exit_code``.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        # a script that does not catch it shows the hint under the traceback
        self.add_note(f"hint: {hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle makes the same error of in another process, which is told of it."""
        return _again, (type(self), self.args, self.__dict__)


class UsageError(ParastratError):
    """Flags or arguments that cannot be meant."""


class CountError(UsageError):
    """A number that no job has; ``fields`` are those of the plan or the workload that make it."""

    def __init__(self, message: str, *, hint: str, fields: tuple[str, ...]) -> None:
        super().__init__(message, hint=hint)
        self.fields = fields


class ModelError(ParastratError):
    """A model that is unknown, cannot be read or cannot be built."""


class ValuesError(ModelError):
    """A forward that depends on values, where shapes alone are known."""


class ProfileError(ParastratError):
    """A hardware, stack or model profile that is unknown or malformed."""


class ProbeError(ParastratError):
    """A device or file that is present but cannot be read."""


class PlanFileError(ParastratError):
    """A plan file that is unreadable, malformed or incomplete."""


class SnapshotError(ParastratError):
    """A memory snapshot that cannot be read, or that is something else."""


class ConfigError(ParastratError):
    """A config file of another tool that is unreadable or malformed."""


class MismatchError(ParastratError):
    """A plan made for another world or another model than the one at hand."""


class OutOfStepError(MismatchError):
    """A trial that ended because another rank failed in it, or came to something else."""


class WrapError(ParastratError):
    """A model that cannot be wrapped as the plan says without changing what it computes."""


class LaunchError(ParastratError):
    """Processes that could not be started, or that failed."""

    exit_code = 1


class InfeasibleError(ParastratError):
    """The answer is no: nothing fits, or the given plan breaks a rule."""

    exit_code = 1


def _again(kind: type[ParastratError], args: tuple[Any, ...], state: dict[str, Any]) -> ParastratError:
    """Return an error as it was: exceptions are otherwise made of their arguments by position alone."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UnknownFactError(Exception):
    """Raised on reading a fact that nobody stated; whoever asked must leave its question open.

    Not a user error: rules that need the fact are reported as not checked.
    """

    def __init__(self, fact: str) -> None:
        super().__init__(fact)
        self.fact = fact
