"""PS526: TrainJobs of Kubeflow Trainer, which refuses jobs that set what it sets itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.pod_facts import entries
from parastrat.rules.rule import file_rule
from parastrat.rules.trainjob_facts import trainjob_pods

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_TRAINER = "https://github.com/kubeflow/trainer/blob/8c0f505/pkg/runtime/framework/plugins/torch/torch.go"


@file_rule("PS526", Severity.ERROR, ConfigFormat.TRAINJOB, source=_TRAINER, covers=("PIT515",))
def trainers_own_variables_are_its_own(file: ConfigFile) -> Iterator[Hit]:
    """A TrainJob sets none of the variables by which Trainer tells torchrun where the pods meet.

    Its plugin for torch sets PET_NNODES and its kin in every pod, by numNodes and numProcPerNode. Its
    webhook refuses jobs that state them.
    """
    pods = trainjob_pods(file)
    for key, entry in entries(file.get(pods.key), "env", pods.key):
        name = str(entry.get("name"))
        if name in pods.told:
            fields = {"PET_NNODES": "numNodes", "PET_NPROC_PER_NODE": "numProcPerNode"}
            yield Hit(
                message=f"{name} is Trainer's own: it refuses jobs that set it",
                fix=f"write {fields[name]} instead" if name in fields else "remove it",
                key=key,
            )
