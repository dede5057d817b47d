"""PS60x: the form of config files. The readers find these; the rules explain them."""

from __future__ import annotations

from parastrat.finding import Severity
from parastrat.rules.rule import guidance

_TOML = "https://toml.io/en/v1.0.0"


@guidance("PS600", severity=Severity.ERROR, source=_TOML)
def cannot_be_read() -> None:
    """A config file must be readable, and of a format that it claims.

    A file that is empty, cut off, of another encoding or of broken syntax configures nothing. Some
    launchers then start with their defaults, and nobody notices.
    """


@guidance(
    "PS601",
    severity=Severity.ERROR,
    source="https://github.com/huggingface/accelerate/blob/main/src/accelerate/commands/config/config_args.py",
    covers=("PIT514",),
)
def unknown_key() -> None:
    """Every key must be one that the file's reader knows.

    A misspelt key sets nothing. The better readers stop at it, when the job has waited in the queue; the
    others run with the default instead of what was meant.
    """


@guidance(
    "PS602", severity=Severity.ERROR, source="https://docs.pydantic.dev/latest/concepts/conversion_table/"
)
def wrong_value() -> None:
    """A value must be of its key's type, and one that the key can take.

    Text where a number belongs, or a choice that does not exist, ends the start of every rank at once, or
    is converted to something that nobody meant.
    """


@guidance("PS603", severity=Severity.ERROR, source=_TOML)
def missing_key() -> None:
    """Keys without a default must be there.

    What a plan leaves out cannot be made up: a wrong default is a wrong plan, and nobody would see where it
    came from.
    """


@guidance("PS604", severity=Severity.ERROR, source=_TOML)
def contradiction() -> None:
    """What a file derives must agree with what it derives it from.

    A total that is not the sum of its parts, or a strategy that is not its mesh's, tells that the file was
    edited in one of two places. Which of them was meant is for its author to say.
    """


@guidance(
    "PS605",
    severity=Severity.ERROR,
    source="https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/config_utils.py",
    covers=("PIT409",),
)
def repeated_key() -> None:
    """A key must stand once in its table.

    Readers differ in what they do with the second: DeepSpeed stops, Python's own JSON and YAML readers
    keep the last one and say nothing.
    """


@guidance(
    "PS606",
    severity=Severity.WARNING,
    source="https://www.deepspeed.ai/docs/config-json/",
)
def ignored_key() -> None:
    """A key that the reader ignores is a wish that nobody heard.

    DeepSpeed reads the keys that it knows at the top level and passes over all others without a word.
    """


@guidance(
    "PS607",
    severity=Severity.WARNING,
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    covers=("PIT620",),
)
def variable_without_reader() -> None:
    """A variable of NCCL's or torch's must be one that they read.

    A misspelt name is set, printed and believed, and changes nothing. The job hangs or crawls as it did.
    """


@guidance("PS608", severity=Severity.WARNING, source="https://github.com/pytorch/torchtitan/releases")
def key_of_earlier_versions() -> None:
    """A key should be one that the last version of a format's reader knows.

    Keys are renamed between versions. An old name works until somebody updates; then a reader that refuses
    what it does not know ends every rank at its start.
    """


@guidance("PS609", severity=Severity.WARNING, source="https://slurm.schedmd.com/spank.html")
def option_of_a_plugin() -> None:
    """An option that Slurm does not have must be one of a plugin's.

    sbatch and srun stop at an option that nobody knows. Plugins of a cluster may add some; which ones, a
    script does not tell.
    """
