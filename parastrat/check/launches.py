"""Launches: those of shell and batch scripts, and those of the pods of Kubeflow's jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.check.checked import Checked, of_syntax, ordered
from parastrat.check.configs import check_config
from parastrat.check.known import Given
from parastrat.check.recognition import KNOWN
from parastrat.config_file import ConfigFile, ConfigFormat
from parastrat.errors import ConfigError
from parastrat.parse.config_text import ConfigSyntaxError, yaml_structure
from parastrat.parse.jobs import job_documents, job_format, pod_scripts
from parastrat.parse.key_names import with_full_names
from parastrat.parse.launch_script import script_tables
from parastrat.parse.launchers import LAUNCHERS
from parastrat.parse.megatron import megatron_options
from parastrat.profiles.files import read_format

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from parastrat.finding import Finding


def check_script(path: Path, lines: tuple[str, ...], text: str, given: Given) -> Checked:
    """Check each launch of a script with the job that they are of; what is said of both is said once.

    Raises:
        ConfigError: nothing starts there.
    """
    known, several = read_format(ConfigFormat.SCRIPT.value), []
    for table, positions in script_tables(text, known):
        if table.keys().isdisjoint((*LAUNCHERS, "ranks", "sbatch", "late", "stray", "unread")):
            raise ConfigError(f"{path} starts no launcher and asks Slurm for nothing", hint=KNOWN)
        file = ConfigFile(format=ConfigFormat.SCRIPT, table=table, positions=positions)
        several.append(check_config(path, lines, _with_megatron(with_full_names(file, known)), given))
    first, *others = several
    if not others:
        return first
    found = dict.fromkeys(each for checked in several for each in checked.findings)
    unknown = dict.fromkeys(code for checked in several for code in checked.open)
    return replace(first, findings=ordered(list(found)), open=tuple(unknown))


def check_jobs(path: Path, lines: tuple[str, ...], text: str, given: Given) -> Checked:
    """Check each of Kubeflow's jobs in a file, and what its pods run as the script that it is."""
    found: list[Finding] = []
    unknown: list[str] = []
    for format_, document in job_documents(text):
        try:
            structure = yaml_structure(document)
        except ConfigSyntaxError as error:
            found.append(of_syntax(path, error))
            continue
        file = ConfigFile(
            format=format_,
            table=structure.table,
            positions=structure.positions,
            repeated=structure.repeated,
        )
        parts = [file, *_pod_scripts(file)]
        checked = [check_config(path, lines, part, given) for part in parts]
        found += [each for part in checked for each in part.findings]
        unknown += [code for part in checked for code in part.open]
    return Checked(
        path=path,
        format=job_format(text),
        findings=ordered(list(dict.fromkeys(found))),
        lines=lines,
        open=tuple(dict.fromkeys(unknown)),
    )


def _pod_scripts(file: ConfigFile) -> Iterator[ConfigFile]:
    """Yield the launches of a job's pods, each with its lines' places in the job."""
    known = read_format(ConfigFormat.SCRIPT.value)
    for text, places in pod_scripts(file):
        for table, positions in script_tables(text, known) if places else ():
            placed = {key: places[min(line, len(places)) - 1] for key, (line, _) in positions.items()}
            part = ConfigFile(format=ConfigFormat.SCRIPT, table=table, positions=placed)
            yield _with_megatron(with_full_names(part, known))


def _with_megatron(file: ConfigFile) -> ConfigFile:
    """Return a launch with the options of Megatron-LM, where that is what it starts."""
    (known,) = read_format("megatron")["tables"]
    options = megatron_options(file.get("own") or {}, known["keys"])
    return file if options is None else replace(file, table={**file.table, "megatron": options})
