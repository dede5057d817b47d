"""Files beside a script that its launch names: configurations, hosts, and programs for Lightning."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from parastrat.check.recognition import format_of_named, structure_of, text_of
from parastrat.config_file import FILLED_IN, ConfigFile, ConfigFormat, whole_number
from parastrat.errors import ConfigError
from parastrat.parse.config_text import ConfigSyntaxError
from parastrat.parse.hosts import read_hosts
from parastrat.parse.key_names import with_full_names
from parastrat.parse.lightning import lightning_counts
from parastrat.parse.plain_values import with_plain_values
from parastrat.parse.python_source import read_source
from parastrat.profiles.files import read_format
from parastrat.rules import RULES, FileRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from parastrat.finding import Hit

_ACCELERATE = ConfigFormat.ACCELERATE.value
#: what ``accelerate launch`` takes of its file where the line says nothing, with its own defaults
_TAKEN = {
    "num_processes": None,
    "num_machines": 1,
    "machine_rank": 0,
    "main_process_ip": None,
    "main_process_port": None,
}
#: keys at the top which rules pass over where they are not stated; the others are kept as text
_OPEN = ("gpu_ids", "machine_rank", "main_process_port", "mixed_precision", "num_processes")
#: switches of the line that stand for a kind in the file
_KINDS = {
    "multi_gpu": "MULTI_GPU",
    "use_fsdp": "FSDP",
    "use_deepspeed": "DEEPSPEED",
    "use_megatron_lm": "MEGATRON_LM",
}
_HOSTS = ("deepspeed.hostfile", "accelerate.deepspeed_hostfile")
#: of which a script may have an option of its own
_CHECKPOINTING = "fsdp_activation_checkpointing"
#: judged by rules of scripts, or of how a file is written
_ELSEWHERE = {"PS619", "PS667", "PS668"}
#: about keys that stand in the file beside others: a line's own are passed over without a word
_OF_FILES = {"PS621"}
#: what the line by itself shows, whatever stands in a file that is not at hand
_OF_LINES = {"PS618", "PS685"}
#: sections that a kind sets up
_SECTIONS = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MEGATRON_LM": "megatron_lm_config"}
#: a key with a value that can be typed behind an option
_SETTING = re.compile(r'\b([a-z][a-z0-9_]*): (true|false|\d+|[A-Z][A-Z_]+|[a-z]+\d\w*|"[^"]*")(?![\w:])')


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A launch with what it takes of files beside its script."""

    file: ConfigFile
    #: accelerate's file by itself; None where it is not at hand
    config: ConfigFile | None = None

    def hits(self) -> Iterator[tuple[FileRule, Hit]]:
        """Yield what accelerate's rules say of the file with this line's options, and not of it alone."""
        joined = None if self.file.get("accelerate") is None else _joined(self.file, self.config)
        for rule in RULES:
            if joined is None or not isinstance(rule, FileRule) or rule.code in _ELSEWHERE:
                continue
            if self.config is None and rule.code not in _OF_LINES:
                continue
            alone = {hit.message for hit in rule.hits(self.config)} if self.config is not None else set()
            for hit in rule.hits(joined):
                is_own = (hit.key or "").rpartition(".")[2] in (self.file.get("accelerate") or {})
                if hit.message not in alone and not (is_own and rule.code in _OF_FILES):
                    yield rule, self._in_the_lines_words(hit)

    def _in_the_lines_words(self, hit: Hit) -> Hit:
        options = self.file.get("accelerate")
        known = {key for entry in read_format("script")["tables"] for key in entry["keys"]}
        fix = _SETTING.sub(
            lambda found: f"--{found[1]} {found[2]}" if found[1] in known else found[0], hit.fix
        )
        name = (hit.key or "").rpartition(".")[2]
        where = f" (with {options['config_file']})" if self.config is not None else ""
        key = f"accelerate.{name if name in options else 'config_file'}"
        return replace(hit, message=hit.message + where, fix=fix, key=key)


def beside(file: ConfigFile, folder: Path) -> Beside:
    """Return a launch of a script in a folder with what the files that it names say.

    A path is looked for from the script's folder: from where it will be run nobody knows here. What is not
    there stays unknown.
    """
    file = _with_lightning(_with_hosts(file, folder), folder)
    config = _config(file.get("accelerate.config_file"), folder)
    file = _with_engine(file, config, folder)
    if config is None:
        return Beside(file=file)
    own = dict(file.get("accelerate"))
    stated = {**config.table, **(config.get("deepspeed_config") or {})}
    for name, default in _TAKEN.items():
        value = stated.get(name)
        text = str(default if value is None else value)
        if name not in own and (whole_number(text) is not None or (name.endswith("ip") and value)):
            own[name] = text
    if own.keys().isdisjoint((*_KINDS, "tpu", "cpu")):
        own["distributed_type"] = str(stated.get("distributed_type"))
        if config.get(f"fsdp_config.{_CHECKPOINTING}") is not None:
            own.setdefault(_CHECKPOINTING, str(config.get(f"fsdp_config.{_CHECKPOINTING}")))
    for name in ("deepspeed_multinode_launcher", "deepspeed_hostfile"):
        if name not in own and isinstance(stated.get(name), str):
            own[name] = stated[name]
    place = file.positions.get("accelerate.config_file", (1, 1))
    positions = {f"accelerate.{name}": place for name in own} | dict(file.positions)
    started = {**file.get("started"), "config": "read"}
    table = {**file.table, "accelerate": own, "started": started}
    return Beside(file=replace(file, table=table, positions=positions), config=config)


def _path(value: Any, folder: Path) -> Path | None:
    """Return the file that an option names, if it is there."""
    if not isinstance(value, str) or not value or "\0" in value or FILLED_IN.search(value):
        return None
    path = folder / value
    try:
        return path if path.is_file() else None
    except OSError:  # a name that no file can have
        return None


def _config(value: Any, folder: Path) -> ConfigFile | None:
    """Return accelerate's file; None where it is not at hand, or so wrong that its own check tells."""
    path = _path(value, folder)
    if path is None:
        return None
    try:
        structure = structure_of(path, text_of(path))
    except (ConfigError, ConfigSyntaxError):
        return None
    if format_of_named(path, structure.table) is not ConfigFormat.ACCELERATE:
        return None
    if structure.table.get("compute_environment") == "AMAZON_SAGEMAKER":
        return None
    known = read_format(_ACCELERATE)
    return with_plain_values(
        with_full_names(ConfigFile(format=ConfigFormat.ACCELERATE, table=structure.table), known), known
    )


def _with_hosts(file: ConfigFile, folder: Path) -> ConfigFile:
    option = next((key for key in _HOSTS if file.get(key) is not None), "")
    path = _path(file.get(option), folder) if option else None
    if path is None:
        return file
    try:
        hosts, wrong = read_hosts(text_of(path))
    except ConfigError:
        return file
    return replace(file, table={**file.table, "hosts": hosts, "not_hosts": wrong})


def _with_lightning(file: ConfigFile, folder: Path) -> ConfigFile:
    """Return a script with what the program of its ranks tells Lightning, if that is here, and tells it."""
    path = _path(file.get("ranks.program"), folder)
    if path is None or path.suffix != ".py":
        return file
    try:
        told = lightning_counts(read_source(text_of(path)))
    except (ConfigError, ConfigSyntaxError):
        return file
    return file if told is None else replace(file, table={**file.table, "lightning": told})


def _with_engine(file: ConfigFile, config: ConfigFile | None, folder: Path) -> ConfigFile:
    """Return a launch with DeepSpeed's configuration, if the line or accelerate's file names one here."""
    key = "deepspeed_config_file"
    stated = file.get("started.engine") or file.get(f"accelerate.{key}")
    if stated is None and config is not None and config.get("distributed_type") == "DEEPSPEED":
        stated = config.get(f"deepspeed_config.{key}")
    path = _path(stated, folder)
    if path is None or path.suffix != ".json":
        return file
    try:
        table = structure_of(path, text_of(path)).table
    except (ConfigError, ConfigSyntaxError):
        return file
    return replace(file, table={**file.table, "engine": table})


def _of_its_kind(config: ConfigFile | None, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what accelerate reads of its file, where the line may name another kind of launch."""
    table: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in (config.table if config is not None else {}).items()
    }
    if "use_parallelism_config" not in own and not own.keys().isdisjoint((*_KINDS, "tpu")):
        table.pop("parallelism_config", None)  # it is the file's kind that takes it
    kind = "NO" if "cpu" in own else next((_KINDS[name] for name in own if name in _KINDS), None)
    if kind is not None:
        table["distributed_type"] = kind
        for other, section in _SECTIONS.items():
            if other != kind:
                table.pop(section, None)
    return table


def _joined(file: ConfigFile, config: ConfigFile | None) -> ConfigFile | None:
    """Return accelerate's file as it is with the options of a line; None where the shell knows some."""
    known, own = read_format(_ACCELERATE), file.get("accelerate")
    table = _of_its_kind(config, own)
    switches = next(entry for entry in read_format("script")["tables"] if entry["name"] == "accelerate")
    for name, value in own.items():
        entry = next((entry for entry in known["tables"] if name in entry["keys"]), None)
        is_known = FILLED_IN.search(value) is None
        if entry is not None and not is_known and not entry["name"] and name in _OPEN:
            table.pop(name, None)
        elif name in _KINDS:
            continue
        elif name == "cpu":
            table["use_cpu"] = True
        elif entry is not None and not is_known and (entry["name"] or name == "num_machines"):
            return None
        elif entry is not None:
            section = table.setdefault(entry["name"], {}) if entry["name"] else table
            if isinstance(section, dict):
                section[name] = True if name in switches["switches"] else value
    plain = with_plain_values(ConfigFile(format=ConfigFormat.ACCELERATE, table=table), known)
    return replace(plain, quoted=config.quoted if config is not None else frozenset())
