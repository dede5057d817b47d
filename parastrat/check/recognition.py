"""Whose a file is: by its suffix and by its keys, never by its name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parastrat.config_file import ConfigFormat
from parastrat.errors import ConfigError
from parastrat.parse.config_text import (
    ConfigSyntaxError,
    Structure,
    json_structure,
    toml_structure,
    yaml_structure,
)
from parastrat.parse.form import did_you_mean
from parastrat.parse.formats import top_keys
from parastrat.parse.jobs import job_documents, job_format
from parastrat.parse.launch_script import starts_training
from parastrat.parse.python_source import read_source
from parastrat.parse.torchtitan_python import python_configs, returns_config
from parastrat.profiles.files import read_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.parse.python_source import Source

SCRIPTS = (".sh", ".sbatch", ".slurm", ".bash")
YAML = (".yaml", ".yml")
PYTHON = ".py"
SUFFIXES = (".toml", ".json", *YAML, *SCRIPTS, PYTHON)
KNOWN = (
    "parastrat check reads plan.toml, torchtitan's TOML and Python, accelerate's YAML or JSON, DeepSpeed's "
    "JSON, Kubeflow's TrainJobs and PyTorchJobs, and scripts that start torchrun, accelerate launch, "
    "deepspeed, or ranks by srun or mpirun"
)

#: keys that no other tool's files have: one is enough to take a file of a folder for the format's
_SIGNS = {
    ConfigFormat.DEEPSPEED: (
        "zero_optimization",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "steps_per_print",
        "wall_clock_breakdown",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
    ),
    ConfigFormat.ACCELERATE: (
        "compute_environment",
        "distributed_type",
        "main_training_function",
        "num_processes",
        "num_machines",
        "machine_rank",
        "parallelism_config",
    ),
}
#: keys that files of other trainers have too: enough where somebody names the file
_HINTS = {
    ConfigFormat.DEEPSPEED: ("gradient_accumulation_steps", "fp16", "bf16"),
    ConfigFormat.ACCELERATE: ("fsdp_config", "deepspeed_config", "mixed_precision", "main_process_port"),
}
#: tables in which torchtitan's files have degrees, in one version or another
_OF_DEGREES = ("parallelism", "training", "experimental")
_DEGREE = re.compile(r"(?:data|tensor|pipeline|context|expert)_parallel_(?:\w+_)?degree")
#: tables of torchtitan's files that others may have too: two are enough where somebody names the file
_TORCHTITANS = frozenset(
    {"job", "model", "training", "parallelism", "activation_checkpoint", "lr_scheduler", "optimizer"}
)
_TWO = 2
_SIGN = re.compile(
    rf"^\s*\"?(?:{'|'.join(key for keys in _SIGNS.values() for key in keys)})\"?\s*:", re.MULTILINE
)
#: where a script is to fill a template in: a name without quotes, or brackets
_PLACEHOLDER = re.compile(r"\"\s*:\s*[A-Z][A-Z0-9_]*\s*,?\s*$|\$\{|\{\{", re.MULTILINE)
#: unknown keys from which a file is another tool's, if most of its keys are unknown
_FOREIGN_KEYS = 6
#: folders of other people's files
_FOREIGN = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})


def config_files(path: Path) -> tuple[Path, ...]:
    """Return the path itself, or the files of a folder whose format is known by their content.

    Raises:
        ConfigError: there is nothing there.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise ConfigError(f"there is no {path}", hint="name files or folders that exist")
    return tuple(file for file in _files_below(path) if _is_config(file))


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield a folder's files of the known suffixes, without what is hidden or was not written here."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in _FOREIGN)
        yield from (Path(root) / name for name in sorted(names) if name.endswith(SUFFIXES))


def _is_config(path: Path) -> bool:
    """Whether a file of a folder is one that the checker reads."""
    try:
        text = text_of(path)
        if path.suffix == ".toml":
            return 'schema = "parastrat.plan' in text or is_torchtitans(toml_structure(text).table)
        if path.suffix == PYTHON:
            known = read_format(ConfigFormat.TORCHTITAN_PYTHON.value)
            return "torchtitan" in text and is_torchtitans_python(read_source(text), known)
        if path.suffix in SCRIPTS:
            return starts_training(text, read_format(ConfigFormat.SCRIPT.value))
        if path.suffix in YAML and job_format(text) is not None:
            # a template's brackets are YAML too
            return "{{" not in text and all(yaml_structure(document) for _, document in job_documents(text))
        return format_of(path, structure_of(path, text).table, _SIGNS) is not None
    except ConfigSyntaxError:
        return _SIGN.search(text) is not None and _PLACEHOLDER.search(text) is None
    except ConfigError:
        return False


def is_torchtitans_python(source: Source, known: Mapping[str, Any]) -> bool:
    """Whether a function of a Python file returns a configuration of one of torchtitan's trainers."""
    typed = any(returns_config(source, function) for function in source.functions.values())
    return typed or any(python_configs(source, known))


def is_torchtitans(table: Mapping[str, Any], *, named: bool = False) -> bool:
    """Whether a TOML file is a configuration of torchtitan's; one that somebody ``named`` needs less."""
    if "plan" in table or "schema" in table:
        return False
    tables = {name: value for name, value in table.items() if isinstance(value, dict)}
    degrees = (key for name in _OF_DEGREES for key in tables.get(name, {}))
    has_signs = "flavor" in tables.get("model", {}) or any(map(_DEGREE.fullmatch, degrees))
    return has_signs or (named and len(tables.keys() & _TORCHTITANS) >= _TWO)


def structure_of(path: Path, text: str) -> Structure:
    """Read JSON, TOML or YAML, by the suffix.

    Raises:
        ConfigSyntaxError: it is none of them.
    """
    readers = {".json": json_structure, ".toml": toml_structure}
    return readers.get(path.suffix, yaml_structure)(text)


def named_format(path: Path, table: Mapping[str, Any]) -> ConfigFormat:
    """Return whose keys a file has that somebody named.

    Raises:
        ConfigError: they are nobody's, or most of them are another tool's.
    """
    found = format_of_named(path, table)
    if found is None:
        raise ConfigError(f"{path} has too few keys of a configuration that parastrat knows", hint=KNOWN)
    return found


def format_of_named(path: Path, table: Mapping[str, Any]) -> ConfigFormat | None:
    """Return whose keys a file has that somebody named; None: nobody's, or most are another tool's."""
    if path.suffix == ".toml":
        return ConfigFormat.TORCHTITAN if is_torchtitans(table, named=True) else None
    return format_of(
        path, table, {format_: (*signs, *_HINTS[format_]) for format_, signs in _SIGNS.items()}
    )


def format_of(
    path: Path, table: Mapping[str, Any], signs: Mapping[ConfigFormat, tuple[str, ...]]
) -> ConfigFormat | None:
    """Return whose signs a file has most of; YAML is never DeepSpeed's. None: another tool's file."""
    counts = {
        format_: len(table.keys() & set(keys))
        for format_, keys in signs.items()
        if path.suffix == ".json" or format_ is ConfigFormat.ACCELERATE
    }
    best = max(counts, key=lambda format_: counts[format_])
    return best if counts[best] and not _is_foreign(best, table) else None


def _is_foreign(format_: ConfigFormat, table: Mapping[str, Any]) -> bool:
    """Whether most keys are unknown to a format, even as misspelt ones."""
    names = top_keys(read_format(format_.value), table)
    unknown = [key for key in table if key not in names and did_you_mean(key, names) is None]
    return len(unknown) >= _FOREIGN_KEYS and 2 * len(unknown) > len(table)


def text_of(path: Path) -> str:
    """Read a file.

    Raises:
        ConfigError: it cannot be read, or is not text.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text", hint="store it as UTF-8") from error
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="name a file that can be read"
        ) from error
