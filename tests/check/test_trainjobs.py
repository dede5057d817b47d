"""TrainJobs of Kubeflow Trainer: their fields, their devices, and what their pods run."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.bad_configs import Bad
from check.bad_trainjobs import BAD_TRAINJOBS, GOOD_TRAINJOBS, TRAINJOB
from check.checked_jobs import checked, find_in_its_document

from parastrat.check import check_file, config_files
from parastrat.check.known import Given
from parastrat.config_file import ConfigFormat
from parastrat.finding import Severity
from parastrat.profiles import load_hardware

GOLDEN = Path(__file__).parents[1] / "emit" / "golden"


@pytest.mark.parametrize("bad", BAD_TRAINJOBS, ids=lambda bad: f"{bad.code}-{bad.what}")
def test_every_mistake_is_found_in_its_document(tmp_path: Path, bad: Bad) -> None:
    find_in_its_document(tmp_path, bad)


@pytest.mark.parametrize("text", GOOD_TRAINJOBS, ids=range(len(GOOD_TRAINJOBS)))
def test_good_jobs_have_no_alarms(tmp_path: Path, text: str) -> None:
    found = checked(tmp_path, text)
    assert found.format is ConfigFormat.TRAINJOB
    assert [each for each in found.findings if each.severity is not Severity.INFO] == []


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.trainjob.yaml")), ids=lambda path: path.name)
def test_what_is_emitted_is_in_order(path: Path) -> None:
    hardware = load_hardware("dgx-h100:2" if "two" in path.name else "dgx-h100")
    findings = check_file(path, Given(hardware=hardware)).findings
    assert [each.code for each in findings if each.severity is Severity.ERROR] == []


def test_each_job_of_a_file_is_checked_where_it_stands(tmp_path: Path) -> None:
    text = TRAINJOB + "---\n" + TRAINJOB.replace("numNodes", "numNode")
    (found,) = [each for each in checked(tmp_path, text).findings if each.code == "PS601"]
    lines = text.splitlines()
    assert "numNode:" in lines[(found.line or 0) - 1]
    assert (found.line or 0) > len(TRAINJOB.splitlines())


def test_a_variables_finding_stands_at_the_variable(tmp_path: Path) -> None:
    text = TRAINJOB.replace("NCCL_DEBUG", "NCCL_DEBUGG")
    (found,) = checked(tmp_path, text).findings
    assert text.splitlines()[(found.line or 0) - 1] == "      - name: NCCL_DEBUGG"


def test_a_name_that_is_no_text_is_not_stumbled_over(tmp_path: Path) -> None:
    found = checked(tmp_path, TRAINJOB.replace("name: NCCL_DEBUG", "name: [NCCL_DEBUG]"))
    assert found.format is ConfigFormat.TRAINJOB


def test_what_pods_tell_megatron_is_judged_too(tmp_path: Path) -> None:
    words = "pretrain_gpt.py, --tensor-model-parallel-size, '16', --num-attention-heads, '40'"
    text = TRAINJOB.replace('train.py, --steps, "100"', words)
    assert "PS201" in [each.code for each in checked(tmp_path, text).findings]


def test_folders_are_searched_for_jobs_and_not_for_other_resources(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TRAINJOB)
    (tmp_path / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")
    (tmp_path / "template.yaml").write_text(
        TRAINJOB.replace("numNodes: 2", "numNodes: {{ .Values.nodes }}")
    )
    assert config_files(tmp_path) == (tmp_path / "job.yaml",)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: torch-distributed", "name: torch-of-ours"),
        ("runtimePatches", "podSpecOverrides"),
        ("numProcPerNode: 8", "numProcPerNode: 1"),
    ],
    ids=["another runtime", "patches of release 2.0", "one process"],
)
def test_memory_that_may_be_there_or_is_not_shared_is_not_told(tmp_path: Path, old: str, new: str) -> None:
    text = TRAINJOB.replace("mountPath: /dev/shm", "mountPath: /data")
    assert "PS532" in [each.code for each in checked(tmp_path, text).findings]
    assert "PS532" not in [each.code for each in checked(tmp_path, text.replace(old, new)).findings]


def test_a_volumes_finding_stands_at_the_volume(tmp_path: Path) -> None:
    text = TRAINJOB.replace("{medium: Memory}", "{}")
    (found,) = [each for each in checked(tmp_path, text).findings if each.code == "PS533"]
    assert "name: shared-memory" in text.splitlines()[(found.line or 0) - 1]
    assert (found.line or 0) == len(text.splitlines()) - 1
