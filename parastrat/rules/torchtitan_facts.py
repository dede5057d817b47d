"""What a torchtitan configuration says of its mesh and batch, with what torchtitan fills in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.plan import Mesh

if TYPE_CHECKING:
    from parastrat.config_file import ConfigFile

#: degrees by their axes; what is left out is 1, of ``dp_shard`` -1
DEGREES = {
    "pp": "parallelism.pipeline_parallel_degree",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
    "dp_shard": "parallelism.data_parallel_shard_degree",
    "cp": "parallelism.context_parallel_degree",
    "tp": "parallelism.tensor_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
}
#: torchtitan's defaults
LOCAL_BATCH, PIPELINE_MICRO_BATCH, LENGTH, SCHEDULE = 8, 1, 2048, "1F1B"


def degree(file: ConfigFile, axis: str) -> int | None:
    """Return an axis's degree; of ``dp_shard`` -1 where it is what the others leave; None: not a degree."""
    stated = file.get(DEGREES[axis])
    if stated is None:
        return -1 if axis == "dp_shard" else 1
    number = file.number(DEGREES[axis])
    is_degree = number is not None and (number >= 1 or (number == -1 and axis == "dp_shard"))
    return number if is_degree else None


def mesh_of(file: ConfigFile) -> Mesh | None:
    """Return the mesh; None where a degree is none or in other words, or unknown devices would fill it."""
    if file.is_on("open"):
        return None
    degrees = {axis: degree(file, axis) for axis in DEGREES}
    known = {axis: number for axis, number in degrees.items() if number is not None}
    if len(known) < len(degrees):
        return None
    if known["dp_shard"] == -1:
        others = known["pp"] * known["dp_replicate"] * known["cp"] * known["tp"]
        if file.devices is None or file.devices % others:
            return None
        known["dp_shard"] = file.devices // others
    return Mesh(**known)


def number_of(file: ConfigFile, key: str, default: int) -> int | None:
    """Return a number from 1 on, or the default where none is stated; None for anything else."""
    stated = file.number(key) if file.get(key) is not None else default
    return stated if stated is not None and stated >= 1 else None


def compiles(file: ConfigFile) -> bool:
    """Whether the model is compiled."""
    components = file.get("compile.components")
    return file.is_on("compile.enable") and (not isinstance(components, list) or "model" in components)


def no_mixed_precision(mesh: Mesh) -> bool:
    """Whether torchtitan leaves mixed precision out: it is FSDP's or DDP's, which this mesh has not."""
    return mesh.dp_shard * mesh.cp == 1 and mesh.tp * mesh.pp > 1
