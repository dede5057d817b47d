"""A good TrainJob of Kubeflow Trainer, and what each mistake in it must be called."""

from __future__ import annotations

from check.bad_configs import Bad

TRAINJOB = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: llama
data:
  plan.toml: |
    [plan]
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: llama
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: registry.example/llama:1
    command: [torchrun]
    args: [train.py, --steps, "100"]
    numNodes: 2
    numProcPerNode: 8
    env:
      - name: NCCL_DEBUG
        value: INFO
      - name: HF_TOKEN
        valueFrom:
          secretKeyRef: {name: hf, key: token}
    resourcesPerNode:
      limits:
        nvidia.com/gpu: "8"
  runtimePatches:
    - manager: example.com/llama
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
                        containers:
                          - name: node
                            volumeMounts:
                              - name: shared-memory
                                mountPath: /dev/shm
                        volumes:
                          - name: shared-memory
                            emptyDir: {medium: Memory}
"""
#: a shell between, CPUs, and what the runtime brings along
GOOD_TRAINJOBS: tuple[str, ...] = (
    TRAINJOB,
    # of a size, the host's, the runtime's, and a disk for other things
    TRAINJOB.replace("{medium: Memory}", "{medium: Memory, sizeLimit: 128Mi}"),
    TRAINJOB.replace("{medium: Memory}", "{medium: Memory, sizeLimit: 1.5Gi}"),
    TRAINJOB.replace("emptyDir: {medium: Memory}", "hostPath: {path: /dev/shm}"),
    TRAINJOB.replace(
        "- name: shared-memory\n                            e", "- name: a\n" + 28 * " " + "e"
    ),
    TRAINJOB.replace("mountPath: /dev/shm", "mountPath: /data").replace("{medium: Memory}", "{}"),
    TRAINJOB.replace("command: [torchrun]", "command: [torchrun, --nproc-per-node, gpu]"),
    # devices by a claim
    TRAINJOB.replace('      limits:\n        nvidia.com/gpu: "8"', "      claims: [{name: gpus}]").replace(
        "command: [torchrun]", "command: [torchrun, --nproc-per-node=gpu]"
    ),
    # what the command says holds
    TRAINJOB.replace("command: [torchrun]", "command: [torchrun, --nproc-per-node=8]").replace(
        "numProcPerNode: 8", "numProcPerNode: 2"
    ),
    TRAINJOB.replace("command: [torchrun]", "command: [torchrun, --node-rank=$(PET_NODE_RANK)]"),
    TRAINJOB.replace("command: [torchrun]", 'command: [bash, -c, "torchrun train.py"]'),
    TRAINJOB.replace("command: [torchrun]", "command: [python, -m, torch.distributed.run]"),
    TRAINJOB.replace("    command: [torchrun]\n", ""),
    # it trains nothing
    TRAINJOB.replace("command: [torchrun]", "command: [python3, -c, 'print(1)']"),
    # what somebody fills in
    TRAINJOB.replace("numNodes: 2", "numNodes: ${NODES}"),
    TRAINJOB.replace("name: torch-distributed", "name: deepspeed-distributed").replace(
        "command: [torchrun]", "command: [mpirun, python]"
    ),
    # of a runtime that may start processes itself
    TRAINJOB.replace("name: torch-distributed", "name: mpi").replace("[torchrun]", "[python]"),
    TRAINJOB.replace("numProcPerNode: 8", "numProcPerNode: auto"),
    TRAINJOB.replace("    numProcPerNode: 8\n", ""),
    TRAINJOB.replace('        nvidia.com/gpu: "8"', '        cpu: "8"').replace(
        "numProcPerNode: 8", "numProcPerNode: 1"
    ),
    TRAINJOB.replace("numNodes: 2", "numNodes: 1")
    .replace("numProcPerNode: 8", "numProcPerNode: 1")
    .replace('"8"', '"1"')
    .replace("command: [torchrun]", "command: [python]"),
)


def _bad(code: str, what: str, old: str, new: str) -> Bad:
    assert TRAINJOB.count(old) == 1, f"{old!r} stands {TRAINJOB.count(old)} times"
    return Bad(code=code, what=what, text=TRAINJOB.replace(old, new), suffix=".yaml")


BAD_TRAINJOBS: tuple[Bad, ...] = (
    _bad("PS600", "broken", "    env:\n", "   env:\n"),
    _bad("PS601", "misspelt", "numNodes", "numNode"),
    _bad("PS601", "of another object", "  trainer:\n", "  numNodes: 2\n  trainer:\n"),
    _bad("PS602", "no number", "numNodes: 2", "numNodes: two"),
    _bad("PS602", "no process", "numProcPerNode: 8", "numProcPerNode: 0"),
    _bad("PS602", "no list", "command: [torchrun]", "command: torchrun train.py"),
    _bad("PS602", "no such version", "trainer.kubeflow.org/v1alpha1", "kubeflow.org/v1"),
    _bad("PS560", "a name of a file", "  name: llama\nspec", "  name: llama.yaml\nspec"),
    _bad("PS603", "no version", "apiVersion: trainer.kubeflow.org/v1alpha1\n", ""),
    _bad("PS605", "twice", "    numNodes: 2\n", "    numNodes: 2\n    numNodes: 4\n"),
    _bad("PS607", "misspelt variable", "NCCL_DEBUG", "NCCL_DEBUGG"),
    _bad("PS608", "of release 2.0", "  runtimePatches:", "  podSpecOverrides:"),
    _bad("PS526", "Trainer's own", "NCCL_DEBUG", "PET_NNODES"),
    _bad("PS527", "too many processes", 'gpu: "8"', 'gpu: "4"'),
    _bad("PS527", "by an option", "command: [torchrun]", "command: [torchrun, --nproc-per-node=16]"),
    _bad("PS528", "idle GPUs", "numProcPerNode: 8", "numProcPerNode: 4"),
    _bad("PS528", "no GPUs", 'nvidia.com/gpu: "8"', 'cpu: "8"'),
    _bad("PS529", "requests alone", "      limits:", "      requests:"),
    _bad(
        "PS529",
        "another request",
        "    resourcesPerNode:\n",
        '    resourcesPerNode:\n      requests: {nvidia.com/gpu: "4"}\n',
    ),
    _bad("PS530", "no launcher", "command: [torchrun]", "command: [python]"),
    _bad(
        "PS530", "no launcher in a shell", "command: [torchrun]", 'command: [bash, -c, "python train.py"]'
    ),
    _bad("PS530", "alone", "command: [torchrun]", "command: [torchrun, --standalone]"),
    _bad("PS530", "other nodes", "command: [torchrun]", "command: [torchrun, --nnodes=1]"),
    _bad("PS530", "the same node", "command: [torchrun]", "command: [torchrun, --node-rank, '0']"),
    _bad("PS531", "a number", "value: INFO", "value: 1"),
    _bad("PS531", "a switch", "value: INFO", "value: true"),
    _bad("PS531", "an argument", '--steps, "100"', "--steps, 100"),
    _bad("PS532", "64 MiB", "mountPath: /dev/shm", "mountPath: /data"),
    _bad("PS533", "a disk", "{medium: Memory}", "{}"),
    _bad("PS533", "a disk, in short", " {medium: Memory}", ""),
    _bad("PS533", "no more than before", "Memory}", "Memory, sizeLimit: 64Mi}"),
    Bad(
        code="PS534",
        what="no GPUs to count",
        text=TRAINJOB.replace('nvidia.com/gpu: "8"', 'cpu: "8"').replace(
            "command: [torchrun]", "command: [torchrun, --nproc-per-node=gpu]"
        ),
        suffix=".yaml",
    ),
    # what rules of scripts say of the pods' command and variables
    _bad(
        "PS514",
        "no network between nodes",
        "name: NCCL_DEBUG\n        value: INFO",
        "name: NCCL_SOCKET_IFNAME\n        value: lo",
    ),
    _bad(
        "PS601", "no option of torchrun", "command: [torchrun]", "command: [torchrun, --max-restartz, '3']"
    ),
)
