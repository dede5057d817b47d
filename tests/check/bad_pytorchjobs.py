"""A good PyTorchJob of Kubeflow's Training Operator, and what each mistake in it must be called."""

from __future__ import annotations

from check.bad_configs import Bad

_MASTER = """\
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: registry.example/llama:1
              command: [torchrun]
              args: [train.py, --steps, "100"]
              env:
                - name: HF_TOKEN
                  valueFrom:
                    secretKeyRef: {name: hf, key: token}
              resources:
                limits:
                  nvidia.com/gpu: 8
              volumeMounts:
                - {name: shared-memory, mountPath: /dev/shm}
          volumes:
            - name: shared-memory
              emptyDir: {medium: Memory}
"""
_WORKER = """\
    Worker:
      replicas: 3
      restartPolicy: OnFailure
      template:
        metadata:
          annotations: {sidecar.istio.io/inject: "false"}
        spec:
          containers:
            - name: logs
              image: registry.example/logs:1
            - name: pytorch
              image: registry.example/llama:1
              command:
                - torchrun
                - train.py
              env:
                - name: NCCL_DEBUG
                  value: WARN
              resources:
                limits: {nvidia.com/gpu: "8"}
              volumeMounts:
                - name: memory-of-workers
                  mountPath: /dev/shm
          volumes:
            - name: memory-of-workers
              emptyDir:
                medium: Memory
"""
PYTORCHJOB = f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: llama
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: llama
spec:
  nprocPerNode: "8"
  runPolicy:
    cleanPodPolicy: None
    backoffLimit: 3
  pytorchReplicaSpecs:
{_MASTER}{_WORKER}"""
_COUNT = '  nprocPerNode: "8"\n'
#: without a Master, of as many Workers as there may be
ELASTIC = PYTORCHJOB.replace(_MASTER, "").replace(
    "  runPolicy:\n",
    "  elasticPolicy:\n    rdzvBackend: c10d\n    minReplicas: 2\n    maxReplicas: 4\n    maxRestarts: 3\n"
    "  runPolicy:\n",
)
_ALONE = PYTORCHJOB.replace(_MASTER, "").replace("replicas: 3", "replicas: 1")


def _small(spec: str, master: str, worker: str, replicas: int = 1) -> str:
    """Return a job with the rest of a container for its Master, and for its Workers; empty: without."""
    pods = {"Master": (1, master), "Worker": (replicas, worker)}
    return f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: small}}\nspec:\n{spec}" + (
        "  pytorchReplicaSpecs:\n"
        + "".join(
            f"    {name}:\n      replicas: {number}\n      restartPolicy: OnFailure\n      template:\n"
            "        spec:\n          containers:\n"
            f"            - {{name: pytorch, image: example, {rest}}}\n"
            for name, (number, rest) in pods.items()
            if rest
        )
    )


_A_GPU = "resources: {limits: {nvidia.com/gpu: 1}}"
_RUN = "command: [torchrun, train.py]"
_OF_MODULE = "command: [python, -m, torch.distributed.run"
_ELASTIC = "  elasticPolicy: {rdzvBackend: c10d, minReplicas: 1, maxReplicas: %d, maxRestarts: 100"
#: what matters here of https://github.com/kubeflow/training-operator v1.9.0, examples/pytorch
EXAMPLES: dict[str, str] = {
    "cpu-demo/demo.yaml": _small('  nprocPerNode: "2"\n', _RUN, _RUN),
    "deepspeed-demo/pytorch_deepspeed_demo.yaml": _small("", f"{_RUN}, {_A_GPU}", f"{_RUN}, {_A_GPU}"),
    "elastic/echo/echo.yaml": _small(
        _ELASTIC % 2 + "}\n",
        "",
        f"env: [{{name: LOGLEVEL, value: DEBUG}}], {_OF_MODULE}, --rdzv_backend=c10d, ./echo.py]",
        2,
    ),
    "elastic/imagenet/imagenet.yaml": _small(
        _ELASTIC % 3 + ", metrics: [{type: Resource, resource: {name: cpu}}]}\n",
        "",
        f"resources: {{requests: {{cpu: 4}}}}, {_OF_MODULE}, imagenet.py, --workers=0]",
        2,
    ),
    "mnist/v1/pytorch_job_mnist_nccl.yaml": _small(
        "", f"args: [--backend, nccl], {_A_GPU}", f"args: [--backend, nccl], {_A_GPU}"
    ),
    "simple.yaml": _small("", "command: [python3, mnist.py]", "command: [python3, mnist.py]"),
    "smoke-dist/pytorch_job_sendrecv.yaml": _small("", "stdin: false", "stdin: false", 3),
}
#: what the operator sets is handed on by many
_HANDED_ON = (
    "command: [bash, -c, 'torchrun --nnodes=$PET_NNODES --nproc_per_node=$PET_NPROC_PER_NODE "
    "--node_rank=$RANK --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py']"
)
GOOD_PYTORCHJOBS: tuple[str, ...] = (
    PYTORCHJOB,
    ELASTIC,
    *EXAMPLES.values(),
    _small("", _HANDED_ON, _HANDED_ON, 3),
    # WORLD_SIZE counts pods where nprocPerNode is no number
    _small("", *[_HANDED_ON.replace("PET_NNODES", "WORLD_SIZE")] * 2),
    # one pod, by itself
    _ALONE,
    _ALONE.replace("- torchrun", "- torchrun\n                - --standalone"),
    _small("", "command: [python, train.py]", ""),
    # what somebody fills in
    PYTORCHJOB.replace("replicas: 3", "replicas: $WORKERS").replace(_COUNT, "  nprocPerNode: ${COUNT}\n"),
    _small("", "command: [torchrun, --standalone, train.py]", ""),
    # told by its own words
    PYTORCHJOB.replace(_MASTER, "").replace(
        "- torchrun\n", "- torchrun\n                - --rdzv-endpoint=head:29500\n"
    ),
    PYTORCHJOB.replace(_COUNT, "").replace("[torchrun]", "[torchrun, --nproc-per-node, gpu]"),
    PYTORCHJOB.replace('"8"\n  runPolicy', '"4"\n  runPolicy')
    .replace("gpu: 8", "gpu: 4")
    .replace("- torchrun", "- torchrun\n                - --nproc_per_node=8"),
    PYTORCHJOB.replace('"8"\n  runPolicy', "gpu\n  runPolicy"),
    # the host's memory
    PYTORCHJOB.replace("mountPath: /dev/shm", "mountPath: /data").replace(
        "          volumes:", "          hostIPC: true\n          volumes:"
    ),
    # the same policy, and what the operator makes of the replicas'
    PYTORCHJOB.replace("          volumes:", "          restartPolicy: OnFailure\n          volumes:"),
    PYTORCHJOB.replace("restartPolicy: OnFailure", "restartPolicy: ExitCode").replace(
        "          volumes:", "          restartPolicy: Never\n          volumes:"
    ),
    ELASTIC.replace("    minReplicas: 2\n    maxReplicas: 4\n", ""),
    ELASTIC.replace("    minReplicas: 2\n", "").replace("maxReplicas: 4", "maxReplicas: 3"),
    ELASTIC.replace("minReplicas: 2", "metrics: [{type: Resource}]\n    minReplicas: 4"),
    # numbered by their rendezvous
    ELASTIC.replace("- torchrun", "- torchrun\n                - --node-rank=0"),
    ELASTIC.replace("c10d", "etcd\n    rdzvHost: etcd-service"),
    ELASTIC.replace("maxRestarts: 3", "standalone: false"),
    ELASTIC.replace(_COUNT, "").replace("maxRestarts: 3", "nProcPerNode: 8"),
)


def _bad(code: str, what: str, old: str, new: str, text: str = PYTORCHJOB) -> Bad:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return Bad(code=code, what=what, text=text.replace(old, new), suffix=".yaml")


_WORKERS = "- torchrun\n"
_LIMITS = "    minReplicas: 2\n    maxReplicas: 4\n"
_POLICY = "    maxRestarts: 3\n"
BAD_PYTORCHJOBS: tuple[Bad, ...] = (
    _bad("PS600", "broken", "  nprocPerNode", " nprocPerNode"),
    _bad("PS601", "misspelt", "nprocPerNode", "nProcPerNode"),
    _bad("PS601", "misspelt in a container", "valueFrom", "valueForm"),
    _bad("PS601", "misspelt limits", "limits: {", "limit: {"),
    _bad("PS601", "misspelt medium", "medium: Memory\n", "mediun: Memory\n"),
    _bad("PS601", "other replicas", "    Worker:", "    Workers:"),
    _bad("PS601", "in small letters", "    Master:", "    master:"),
    _bad("PS602", "no text", 'nprocPerNode: "8"', "nprocPerNode: 8"),
    _bad("PS602", "no number", "replicas: 3", "replicas: three"),
    _bad("PS602", "no pods", "replicas: 3", "replicas: 0"),
    _bad("PS602", "no list", "command: [torchrun]", "command: torchrun train.py"),
    _bad("PS602", "no such policy", "cleanPodPolicy: None", "cleanPodPolicy: Never"),
    _bad("PS602", "no such version", "kubeflow.org/v1\n", "kubeflow.org/v1beta1\n"),
    _bad(
        "PS602", "no such restarts", "replicas: 3\n      restartPolicy: OnFailure", "restartPolicy: Maybe"
    ),
    _bad("PS602", "no such backend", "c10d", "zookeeper", ELASTIC),
    _bad("PS560", "a name in capitals", "  name: llama\nspec", "  name: Llama_8B\nspec"),
    _bad("PS560", "a name that begins with a digit", "  name: llama\nspec", "  name: 8b-llama\nspec"),
    _bad("PS560", "a long name", "  name: llama\nspec", f"  name: {'llama-' * 11}\nspec"),
    _bad("PS603", "nothing below replicas", f"ReplicaSpecs:\n{_MASTER}{_WORKER}", "ReplicaSpecs:\n"),
    _bad("PS603", "no replicas", f"  pytorchReplicaSpecs:\n{_MASTER}{_WORKER}", ""),
    _bad("PS603", "a Master of no number", "      replicas: 1\n", ""),
    _bad("PS603", "no image", "              image: registry.example/logs:1\n", ""),
    _bad("PS605", "twice", "      replicas: 3\n", "      replicas: 3\n      replicas: 4\n"),
    _bad("PS607", "misspelt variable", "NCCL_DEBUG", "NCCL_DEBUGG"),
    _bad("PS527", "too many processes", "gpu: 8", "gpu: 4"),
    _bad("PS527", "too many by an option", _WORKERS, "- torchrun --nproc-per-node=16\n"),
    _bad("PS528", "idle GPUs", 'nprocPerNode: "8"', 'nprocPerNode: "4"'),
    _bad("PS528", "idle by the older key", _POLICY, "    nProcPerNode: 4\n", ELASTIC.replace(_COUNT, "")),
    _bad("PS528", "one process", _WORKERS, "- python\n", PYTORCHJOB.replace(_COUNT, "")),
    _bad("PS528", "one process of one pod", _WORKERS, "- python\n", _ALONE.replace(_COUNT, "")),
    _bad("PS528", "no GPUs", "nvidia.com/gpu: 8", "cpu: 8"),
    _bad("PS529", "requests alone", "limits: {", "requests: {"),
    _bad("PS530", "processes that nobody starts", _WORKERS, "- python\n"),
    _bad("PS530", "elastic, by python", _WORKERS, "- python\n", ELASTIC),
    _bad("PS530", "alone", _WORKERS, "- torchrun\n                - --standalone\n"),
    _bad("PS530", "other nodes", _WORKERS, "- torchrun\n                - --nnodes=3\n"),
    _bad("PS530", "processes as nodes", _WORKERS, "- torchrun\n                - --nnodes=$(WORLD_SIZE)\n"),
    _bad("PS530", "the same node", _WORKERS, "- torchrun\n                - --node_rank=1\n"),
    _bad("PS531", "a number", "value: WARN", "value: 1"),
    _bad("PS531", "an argument", '--steps, "100"', "--steps, 100"),
    _bad("PS532", "64 MiB", "{name: shared-memory, mountPath: /dev/shm}", "{name: a, mountPath: /data}"),
    _bad("PS533", "a disk", "{medium: Memory}", "{}"),
    _bad(
        "PS534", "no GPUs to count", "nvidia.com/gpu: 8", "cpu: 8", PYTORCHJOB.replace('e: "8"', "e: gpu")
    ),
    _bad("PS541", "two Masters", "replicas: 1", "replicas: 2"),
    _bad(
        "PS541",
        "another name",
        "- name: pytorch\n              image: r",
        "- name: main\n              image: r",
        PYTORCHJOB.replace(_WORKER, ""),
    ),
    _bad(
        "PS542",
        "no Workers",
        _WORKER,
        "",
        PYTORCHJOB.replace("  runPolicy", "  elasticPolicy: {}\n  runPolicy"),
    ),
    _bad("PS542", "two numbers", _POLICY, "    nProcPerNode: 8\n", ELASTIC),
    _bad("PS542", "limits in disorder", "minReplicas: 2", "minReplicas: 5", ELASTIC),
    _bad("PS543", "too few", "minReplicas: 2", "minReplicas: 4", ELASTIC),
    _bad("PS543", "too many", "maxReplicas: 4", "maxReplicas: 2", ELASTIC),
    _bad("PS543", "too many for the most alone", _LIMITS, "    maxReplicas: 2\n", ELASTIC),
    _bad("PS543", "too many for the least alone", _LIMITS, "    minReplicas: 2\n", ELASTIC),
    _bad("PS543", "a Master too many", "  runPolicy", "  elasticPolicy: {}\n  runPolicy"),
    _bad("PS544", "nowhere to meet", _MASTER, ""),
    _bad("PS545", "the operator's own", "NCCL_DEBUG", "WORLD_SIZE"),
    _bad("PS545", "of elastic pods", "NCCL_DEBUG", "PET_RDZV_ENDPOINT", ELASTIC),
    _bad(
        "PS546",
        "another policy",
        "            - name: logs\n",
        "            - name: logs\n",
        PYTORCHJOB.replace(
            "          volumes:\n            - name: memory",
            "          restartPolicy: Never\n          volumes:\n            - name: memory",
        ),
    ),
    _bad("PS547", "no number", 'nprocPerNode: "8"', 'nprocPerNode: "0"'),
    _bad("PS548", "standalone", _POLICY, "    standalone: true\n", ELASTIC),
    _bad("PS548", "no server", "c10d", "etcd-v2", ELASTIC),
    # what rules of scripts say of the pods' command and variables
    _bad(
        "PS514",
        "no network between nodes",
        "name: NCCL_DEBUG\n                  value: WARN",
        "name: NCCL_SOCKET_IFNAME\n                  value: lo",
    ),
    _bad("PS601", "no option of torchrun", _WORKERS, "- torchrun\n                - --max-restartz=3\n"),
)
