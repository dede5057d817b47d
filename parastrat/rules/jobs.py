"""The pods of a job, whichever operator starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.rules.pytorchjob_facts import pytorchjob_pods
from parastrat.rules.trainjob_facts import trainjob_pods

if TYPE_CHECKING:
    from parastrat.config_file import ConfigFile
    from parastrat.rules.pod_facts import Pods


def pods_of(file: ConfigFile) -> tuple[Pods, ...]:
    """Return the pods of a job, those that are alike together."""
    return (
        tuple(pytorchjob_pods(file)) if file.format is ConfigFormat.PYTORCHJOB else (trainjob_pods(file),)
    )
