"""Keys inside DeepSpeed's tables: what was probably meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from check.bad_configs import ZERO

from parastrat.check import check_file
from parastrat.check.known import Given


@pytest.mark.parametrize(
    ("table", "stated", "meant"),
    [
        ("aio", {"queue_dept": 8}, "queue_depth"),
        ("aio", {"thread_count": 1}, "intra_op_parallelism"),
        ("flops_profiler", {"enabled": True, "output_fil": "x"}, "output_file"),
        ("comms_logger", {"prof_op": []}, "prof_ops"),
        ("activation_checkpointing", {"cpu_checkpoint": False}, "cpu_checkpointing"),
        ("tensorboard", {"output_pth": "x"}, "output_path"),
        ("wandb", {"proj": "x"}, "project"),
        ("csv_monitor", {"jobname": "x"}, "job_name"),
        ("elasticity", {"enabled": False, "max_batch_size": 8}, "max_train_batch_size"),
        ("data_types", {"grad_acum_dtype": "fp32"}, "grad_accum_dtype"),
        ("bf16", {"enable": True}, "enabled"),
        ("fp16", {"initial_scale": 16}, "initial_scale_power"),
    ],
)
def test_misspelt_keys_of_tables_get_what_was_meant(
    tmp_path: Path, table: str, stated: dict[str, Any], meant: str
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**ZERO, table: stated}, indent=1))
    found = {each.code: each for each in check_file(path, Given()).findings}
    (code,) = found.keys() & {"PS601", "PS606"}
    assert found[code].fix == f"did you mean {meant}?"
    assert (
        path.read_text().splitlines()[(found[code].line or 0) - 1].strip().startswith(f'"{[*stated][-1]}"')
    )
