"""The number of nodes, from the environment of a job."""

from __future__ import annotations

import pytest

from parastrat.errors import ProbeError
from parastrat.probe.job import nodes_of_job


@pytest.mark.parametrize(
    ("environ", "nodes"),
    [
        ({}, 1),
        ({"SLURM_NNODES": "4"}, 4),
        ({"SLURM_JOB_NUM_NODES": "3"}, 3),
        ({"PET_NNODES": "2"}, 2),
        ({"PET_NNODES": "2:6"}, 2),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 2),
        # one node of an allocation of four was started on
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "SLURM_NNODES": "4"}, 1),
        ({"WORLD_SIZE": "8"}, 1),
        ({"SLURM_NNODES": ""}, 1),
    ],
)
def test_nodes(environ: dict[str, str], nodes: int) -> None:
    assert nodes_of_job(environ) == nodes


@pytest.mark.parametrize(
    "environ",
    [{"SLURM_NNODES": "many"}, {"PET_NNODES": "0"}, {"WORLD_SIZE": "9", "LOCAL_WORLD_SIZE": "8"}],
)
def test_what_is_no_number_of_nodes_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(ProbeError, match=next(iter(environ))):
        nodes_of_job(environ)
