"""PyTorchJobs of Kubeflow's Training Operator: their fields, their replicas, and what their pods run."""

from __future__ import annotations

from pathlib import Path

import pytest
from check.bad_configs import Bad
from check.bad_pytorchjobs import BAD_PYTORCHJOBS, ELASTIC, EXAMPLES, GOOD_PYTORCHJOBS, PYTORCHJOB
from check.bad_trainjobs import TRAINJOB
from check.checked_jobs import checked, find_in_its_document

from parastrat.check import config_files
from parastrat.check.recognition import KNOWN
from parastrat.config_file import ConfigFormat
from parastrat.finding import Finding


def _found(folder: Path, text: str, code: str) -> list[Finding]:
    return [each for each in checked(folder, text).findings if each.code == code]


@pytest.mark.parametrize("bad", BAD_PYTORCHJOBS, ids=lambda bad: f"{bad.code}-{bad.what}")
def test_every_mistake_is_found_in_its_document(tmp_path: Path, bad: Bad) -> None:
    find_in_its_document(tmp_path, bad)


@pytest.mark.parametrize("text", GOOD_PYTORCHJOBS, ids=range(len(GOOD_PYTORCHJOBS)))
def test_good_jobs_have_no_findings(tmp_path: Path, text: str) -> None:
    found = checked(tmp_path, text)
    assert found.format is ConfigFormat.PYTORCHJOB
    assert found.findings == ()


def test_a_misspelt_field_of_a_container_is_shown_where_it_stands(tmp_path: Path) -> None:
    text = PYTORCHJOB.replace("limits: {", "limit: {")
    (found,) = _found(tmp_path, text, "PS601")
    assert found.fix == "did you mean limits?"
    assert text.splitlines()[(found.line or 0) - 1][(found.column or 0) - 1 :].startswith("limit: {")


def test_what_is_missing_in_a_container_is_shown_at_it(tmp_path: Path) -> None:
    text = PYTORCHJOB.replace("              image: registry.example/logs:1\n", "")
    (found,) = _found(tmp_path, text, "PS603")
    assert "name: logs" in text.splitlines()[(found.line or 0) - 1]


@pytest.mark.parametrize("kind", ["Master", "Worker"])
def test_each_kind_of_pods_is_judged_by_its_own_devices(tmp_path: Path, kind: str) -> None:
    old, new = {"Master": ("gpu: 8", "gpu: 4"), "Worker": ('gpu: "8"', 'gpu: "4"')}[kind]
    (found,) = _found(tmp_path, PYTORCHJOB.replace(old, new), "PS527")
    assert found.message == "8 processes in a pod with 4 devices"
    assert found.fix == 'write nprocPerNode: "4", or ask for 8'


def test_a_command_that_overrides_the_job_is_shown_at_it(tmp_path: Path) -> None:
    text = PYTORCHJOB.replace("command: [torchrun]", "command: [torchrun, --nproc-per-node, '4']")
    (found,) = _found(tmp_path, text, "PS528")
    assert "--nproc-per-node, '4'" in text.splitlines()[(found.line or 0) - 1]


def test_python_in_each_pod_is_one_process_beside_a_master(tmp_path: Path) -> None:
    text = EXAMPLES["simple.yaml"]
    assert _found(tmp_path, text, "PS530") == []
    several = text.replace("spec:\n  pytorch", 'spec:\n  nprocPerNode: "4"\n  pytorch')
    found = _found(tmp_path, several, "PS530")
    assert len(found) == 2  # of the Master, and of the Worker
    assert found[0].message.startswith("python runs once in each of 2 pods, by itself: 8 processes")


def test_pods_of_cpus_are_not_told_of_shared_memory(tmp_path: Path) -> None:
    text = PYTORCHJOB.replace("mountPath: /dev/shm", "mountPath: /data")
    assert len(_found(tmp_path, text, "PS532")) == 2
    on_cpus = text.replace("nvidia.com/gpu: 8", "cpu: 8").replace('nvidia.com/gpu: "8"', 'cpu: "8"')
    assert _found(tmp_path, on_cpus, "PS532") == []


def test_variables_of_elastic_pods_are_free_in_others(tmp_path: Path) -> None:
    for name in ("PET_RDZV_ENDPOINT", "PET_MAX_RESTARTS"):
        text = PYTORCHJOB.replace("NCCL_DEBUG", name)
        assert _found(tmp_path, text, "PS545") == []
    # without a Master nobody is told of ranks
    assert _found(tmp_path, ELASTIC.replace("NCCL_DEBUG", "RANK"), "PS545") == []


def test_what_pods_tell_megatron_is_judged_too(tmp_path: Path) -> None:
    words = "pretrain_gpt.py, --tensor-model-parallel-size, '16', --num-attention-heads, '40'"
    text = PYTORCHJOB.replace('train.py, --steps, "100"', words)
    assert _found(tmp_path, text, "PS201")


def test_jobs_of_both_kinds_in_a_file_are_checked_where_they_stand(tmp_path: Path) -> None:
    text = PYTORCHJOB + "---\n" + TRAINJOB.replace("numNodes", "numNode")
    (found,) = _found(tmp_path, text, "PS601")
    assert "numNode:" in text.splitlines()[(found.line or 0) - 1]
    assert "of a TrainJob" in found.message
    text = TRAINJOB + "---\n" + PYTORCHJOB.replace("cleanPodPolicy", "cleanPolicy")
    (found,) = _found(tmp_path, text, "PS601")
    assert "cleanPolicy:" in text.splitlines()[(found.line or 0) - 1]
    assert "of a PyTorchJob" in found.message


def test_folders_are_searched_for_jobs(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(PYTORCHJOB)
    (tmp_path / "tf.yaml").write_text("apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: x}\n")
    (tmp_path / "template.yaml").write_text(PYTORCHJOB.replace("replicas: 3", "replicas: {{ .Values.n }}"))
    assert config_files(tmp_path) == (tmp_path / "job.yaml",)


_OF_LISTS = (
    "{containers: [{name: [], env: [{name: []}], volumeMounts: [{name: [], mountPath: /dev/shm}]}], "
    "volumes: [{name: []}]}"
)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "spec: []\n",
        "spec:\n  pytorchReplicaSpecs: []\n",
        "spec: {elasticPolicy: 1}\n",
        "spec: {pytorchReplicaSpecs: {Worker: 3}}\n",
        "spec: {pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [1, {env: [2]}]}}}}}\n",
        f"spec: {{pytorchReplicaSpecs: {{Worker: {{template: {{spec: {_OF_LISTS}}}}}}}}}\n",
    ],
)
def test_what_is_no_job_at_all_is_not_stumbled_over(tmp_path: Path, spec: str) -> None:
    text = f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: x}}\n{spec}"
    assert checked(tmp_path, text).findings


def test_known_formats_name_both_jobs() -> None:
    assert "TrainJobs and PyTorchJobs" in KNOWN
