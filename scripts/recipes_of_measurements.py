# ruff: noqa: INP001, S102, S603, T201 - a script, which runs git, reads Python from it, and reports by printing
"""Write what recipes of Megatron-Bridge's releases do with experts beside the runs published with them.

Usage: python scripts/recipes_of_measurements.py CHECKOUT

Fills ``dispatcher``, ``exchange_overlap`` and ``cuda_graph`` of benchmarks/data/published.csv from
scripts/performance/configs at the tag of the release that a row's source names: where a recipe for the
row's model, device and number format has its mesh, micro-batch and global batch. Other rows stay so.
CHECKOUT is of https://github.com/NVIDIA-NeMo/Megatron-Bridge, with its tags; its configurations are run.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "published.csv"
#: tags of the releases that tables name by their container
TAGS = {
    "25.11": "v0.2.1",
    "26.02": "v0.3.0",
    "26.02.01": "v0.3.1",
    "26.04": "v0.4.0",
    "26.04.01": "v0.4.2",
    "26.06": "v0.5.0",
    "26.06.01": "v0.5.1",
}
_MODELS = {
    "DeepSeekV3": "DEEPSEEK_V3",
    "DeepSeekV3 (w/o MTP)": "DEEPSEEK_V3",
    "GPT OSS 120B": "GPT_OSS_120B",
    "Kimi_K2": "KIMI_K2",
    "Qwen3_235B_a22B": "QWEN3_235B_A22B",
    "Qwen3_30B_a3B": "QWEN3_30B_A3B",
    "Nemotron_3_Nano": "NEMOTRON_3_NANO",
    "Nemotron_3_Super": "NEMOTRON_3_SUPER",
}
_FORMATS = {
    "bf16": ("BF16",),
    "fp8": ("FP8_CS", "FP8_SC"),
    "fp8-cs": ("FP8_CS",),
    "mxfp8": ("FP8_MX",),
    "fp8-mx": ("FP8_MX",),
    "nvfp4": ("NVFP4",),
}
_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
}
#: release 26.02.01 sets the dispatcher of these again, by device (configs/qwen/qwen3_llm_pretrain.py)
_SET_AGAIN = {("v0.3.1", "QWEN3_235B_A22B", device) for device in ("B300", "B200", "H100")}
_COLUMNS = ("dispatcher", "exchange_overlap", "cuda_graph")


def shown(checkout: Path, *command: str) -> str:
    """Return what git says of a checkout."""
    own = ["git", "-C", str(checkout), *command]
    return subprocess.run(own, check=True, capture_output=True, text=True).stdout


def recipes(checkout: Path, tag: str) -> dict[str, Any]:
    """Return the configurations of a release by name."""
    source = shown(checkout, "show", f"{tag}:scripts/performance/utils/utils.py")
    written = re.search(r"@dataclass.*?\nclass WorkloadBaseConfig:.*?(?=\ndef )", source, re.DOTALL)
    if written is None:
        raise SystemExit(f"{tag} has no WorkloadBaseConfig")
    names: dict[str, Any] = {}
    exec("from dataclasses import dataclass\nfrom typing import *\n" + written[0], names)
    utils = types.ModuleType("utils.utils")
    vars(utils).update(names)
    sys.modules |= {"utils": types.ModuleType("utils"), "utils.utils": utils}
    found: dict[str, Any] = {}
    for path in shown(checkout, "ls-tree", "-r", "--name-only", tag, "scripts/performance/configs").split():
        if path.endswith("workload_base_configs.py"):
            own: dict[str, Any] = {}
            exec(shown(checkout, "show", f"{tag}:{path}"), own)
            form = names["WorkloadBaseConfig"]
            found |= {name: each for name, each in own.items() if isinstance(each, form)}
    return found


def recipe_of(row: dict[str, str], tag: str, known: dict[str, Any]) -> dict[str, str] | None:
    """Return the columns of a row; None where no recipe, or several that differ, are the row's."""
    model = _MODELS.get(row["model"])
    if model is None or row["task"] != "pretrain":
        return None
    sizes = {name: int(row[name] or 1) for name in _SIZES}
    found = []
    for name, each in known.items():
        forms = "|".join(_FORMATS.get(row["precision"], ()))
        own = rf"_?{model}(_PRETRAIN_CONFIG)?_{row['gpu']}_({forms})(_BASE_CONFIG|_V\d|_GBS\d+)?"
        if re.fullmatch(own, name) and sizes == {
            size: getattr(each, field) or 1 for size, field in _SIZES.items()
        }:
            again = (tag, model, row["gpu"]) in _SET_AGAIN
            dispatcher = None if again else each.moe_flex_dispatcher_backend
            captured = each.cuda_graph_impl == "full_iteration"
            found.append((dispatcher or "alltoall", str(bool(each.moe_a2a_overlap)).lower(), captured))
    if len(set(found)) != 1:
        return None
    dispatcher, overlap, captured = found[0]
    return dict(zip(_COLUMNS, (dispatcher, overlap, "step" if captured else "none"), strict=True))


def main() -> None:
    """Fill the table."""
    checkout = Path(sys.argv[1])
    known = {tag: recipes(checkout, tag) for tag in TAGS.values()}
    with TABLE.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = [name for name in reader.fieldnames or () if name not in _COLUMNS]
        rows = list(reader)
    filled = 0
    for row in rows:
        release = re.search(r"^NVIDIA-NeMo/Megatron-Bridge .*\(([\d.]+)\)$", row["source"])
        if release is None or release[1] not in TAGS:
            continue
        own = recipe_of(row, TAGS[release[1]], known[TAGS[release[1]]])
        filled += own is not None
        row.update(own or {})
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *_COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{filled} runs have a recipe")


if __name__ == "__main__":
    main()
