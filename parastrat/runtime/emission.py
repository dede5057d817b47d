"""How a model is divided and cut, for code that is written out: proven on ranks or on fake tensors."""

from __future__ import annotations

import copy
import multiprocessing
import queue
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from parastrat.emit import EmitError
from parastrat.emit.division import EDGES, Style
from parastrat.emit.python import emit
from parastrat.emit.staging import Alike, Staging
from parastrat.errors import LaunchError, ParastratError
from parastrat.plan import Mesh, Shard
from parastrat.probe.files import LIVE
from parastrat.probe.host import read_memory_bytes
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.building import build_module, described
from parastrat.runtime.communication.gloo import mesh_of_dtensors
from parastrat.runtime.first_values.on_meta import build_on_meta
from parastrat.runtime.pipeline.example import Example
from parastrat.runtime.pipeline.passing import NotStagedError
from parastrat.runtime.pipeline.trial import tried as tried_stages
from parastrat.runtime.pipeline.written import staged
from parastrat.runtime.preset_models import builder_of
from parastrat.runtime.tensor_parallel.bench import Bench, bench_of
from parastrat.runtime.tensor_parallel.choice import layout_on, on_copy
from parastrat.runtime.tensor_parallel.copies import Source
from parastrat.runtime.tensor_parallel.proof import tried
from parastrat.runtime.tensor_parallel.written import NotWrittenError, readings, written
from parastrat.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess

    from parastrat.case import Case
    from parastrat.emit import TextFile
    from parastrat.emit.division import Division

#: seconds that ranks may take to find and prove a layout
DEADLINE_S = 300.0
#: seconds between two looks at whether they live
POLL_S = 0.5
#: of this host's memory what a rank takes beside what all share: 390 MiB, measured on 59 (torch 2.13)
RANK_BYTES = 400 * 2**20
#: what returns a whole activation by itself
_ALONE = (Style.EMBEDDING, Style.HEAD, Style.HEAD_DIVIDED, Style.WHOLE, *EDGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one rank found: a division, or why there is none."""

    division: Division | None = None
    #: message and hint
    refused: tuple[str, str] = ("", "")
    #: no rank could say whether there is one
    failed: bool = False


def proven_division(ref: str, case: Case) -> Division:
    """Return how the layers of a model are divided over the plan's tp ranks, as emitted code says it.

    The code that will be emitted is run on a small copy, on as many processes of this host as the plan has
    tp ranks, and compared with what the copy computes alone.

    Args:
        ref: MODEL: ``path.py:callable``, ``package.module:callable``, a Hugging Face config, or a preset
            that transformers builds.
        case: the plan, with tp.

    Raises:
        ModelError: the model cannot be built.
        EmitError: torch's own styles do not say what is divided, or code in them computes something else;
            or this host has too little memory for so many ranks.
        LaunchError: a rank failed, or did not answer.
    """
    builder_of(ref)  # what cannot be built is told before anything starts
    ranks = case.plan.mesh.tp
    _check_memory(ranks)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["parastrat.runtime.emission"])
    answers: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            context.Process(target=_rank, args=(rank, store, answers, ref, case)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            answer = _first_answer(answers, processes)
            for process in processes if answer.division else ():
                process.join(timeout=5)
        finally:
            for process in processes:
                process.kill()
    if answer.division is None:
        kind = LaunchError if answer.failed else EmitError
        raise kind(answer.refused[0], hint=answer.refused[1])
    return answer.division


def block_classes(ref: str) -> tuple[str, ...]:
    """Return the names of the classes of a model's repeated blocks, which FSDP2 shards one by one.

    Raises:
        ModelError: MODEL cannot be built on the meta device.
    """
    return tuple(
        sorted({type(block).__name__ for block in repeated_blocks(build_module(builder_of(ref))).modules})
    )


def _check_memory(ranks: int) -> None:
    memory = read_memory_bytes(LIVE)
    if memory is not None and ranks * RANK_BYTES > memory:
        raise EmitError(
            f"how {ranks} tp ranks divide this model is proven by as many processes, which take about "
            f"{ranks * RANK_BYTES / GIB:.0f} GiB; this host has {memory / GIB:.0f}",
            hint="emit on a host with more memory, or for torchrun or slurm: ranks prove it as they start",
        )


def proven_staging(ref: str, case: Case, division: Division | None = None) -> Staging:
    """Return where the plan's stages cut a model, as emitted code says it.

    The code that will be emitted is run on fake tensors, stage after stage; it must compute what the whole
    model computes.

    Args:
        ref: MODEL, as for ``proven_division``.
        case: the plan, with pp.
        division: of the model's layers, where the plan has tp.

    Raises:
        ModelError: the model cannot be built.
        WrapError: it cannot be cut into the plan's stages.
        EmitError: a few lines do not say the cut, or compute something else.
    """
    builder = builder_of(ref)
    module, _ = build_on_meta(builder.build)
    made = builder.sample_inputs
    refused: NotStagedError | None = None
    try:
        length = case.workload.sequence_length
        example = Example(inputs=None if made is None else made(2, length), sequence_length=length)
        draft = staged(module, case.plan, example)
        for staging in draft.stagings:
            try:
                _check_places(division, staging)
                return tried_stages(draft, staging, _defined(emit(case, division, staging)))
            except NotStagedError as error:
                refused = error
    except NotStagedError as error:
        refused = error
    raise EmitError(
        f"this model's stages are not written in a few lines of torch: {refused}",
        hint="emit for torchrun or slurm: their scripts run this plan through auto_parallelize",
    ) from refused


def _check_places(division: Division | None, staging: Staging) -> None:
    """Refuse layers divided together that are in no block, where a stage may end; and unknown positions."""
    if division is None:
        return
    if division.edges and not (staging.alike and staging.alike.by_position):
        raise NotStagedError("positions are divided, and the input has others than what passes the stages")
    for place in division.places:
        if place.style not in _ALONE and not place.name.startswith(f"{division.container}.*."):
            raise NotStagedError(f"{place.name} is divided together with others outside of blocks")


def _defined(files: tuple[TextFile, ...]) -> dict[str, Any]:
    """Return what an emitted file defines: what is handed out is what is tried."""
    names: dict[str, Any] = {}
    exec(compile(files[0].text, files[0].path, "exec"), names)  # noqa: S102 - see above
    return names


def _first_answer(answers: Any, processes: Sequence[BaseProcess]) -> Answer:
    """Return what the first rank says; a rank that ended without a word, or none in time, is a refusal."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        failed = [str(process.exitcode) for process in processes if process.exitcode]
        try:
            answer: Answer = answers.get(timeout=POLL_S)
        except queue.Empty:
            if failed:  # seen before the wait: what it had to say has arrived by now
                return Answer(
                    refused=(
                        f"a rank that tried the layout ended with exit code {failed[0]}",
                        "a negative code is a signal, -9 mostly for want of memory; else see above",
                    ),
                    failed=True,
                )
        else:
            return answer
    return Answer(
        refused=(f"{len(processes)} ranks did not answer in {DEADLINE_S:.0f} s", "try again"), failed=True
    )


def _rank(rank: int, store: str, answers: Any, ref: str, case: Case) -> None:
    torch.set_num_threads(1)
    try:
        found = _found(rank, store, ref, case)
    except ParastratError as error:
        found = Answer(refused=(error.message, error.hint))
    except Exception as error:  # noqa: BLE001  (the model's code may raise anything; the message quotes it)
        found = Answer(refused=_refusal(f"trying it raised {described(error)}"), failed=True)
    if rank == 0 or found.division is None:
        answers.put(found)
    if dist.is_initialized():
        dist.destroy_process_group()


def _found(rank: int, store: str, ref: str, case: Case) -> Answer:
    """Find the layout, write it, and try what was written; all ranks alike."""
    builder = builder_of(ref)
    module, record = build_on_meta(builder.build)
    ranks, in_stages = case.plan.mesh.tp, case.plan.mesh.pp > 1
    dist.init_process_group("gloo", store=FileStore(store, ranks), rank=rank, world_size=ranks)
    mesh = mesh_of_dtensors("cpu", (ranks,), ("tp",), ("tp",))
    made = builder.sample_inputs
    source = Source(
        module=module,
        sample_inputs=None if made is None else made(2, case.workload.sequence_length),
        record=record,
        device=torch.device("cpu"),
        sequence=case.plan.sequence_parallel,
        # a loop that calls the model is given whole logits
        loss=case.plan.loss_parallel and in_stages,
        stages=in_stages,
    )
    bench = bench_of(source, mesh)
    layout = layout_on(source, bench)
    try:
        given = readings(copy.deepcopy(bench.copy), bench.task.inputs)
        division = written(module, layout, given)
        tried = written(bench.copy, replace(on_copy(bench, layout), loss=layout.loss), given)
    except NotWrittenError as error:
        return Answer(refused=_refusal(str(error)))
    failure = _apart(bench, case, tried)
    return Answer(refused=_refusal(failure)) if failure else Answer(division=division)


def _apart(bench: Bench, case: Case, division: Division) -> str:
    """Return how the emitted code differs from one device on the small copy; nothing if it does not."""
    staging = None
    if case.plan.mesh.pp > 1:  # stages are tried apart from what is divided inside of them
        plan = replace(
            case.plan,
            mesh=Mesh(pp=division.blocks, tp=case.plan.mesh.tp),
            gradient_accumulation_steps=division.blocks,
            shard=Shard.NONE,
            pp_schedule=None,
            virtual_stages=1,
        )
        case = replace(case, plan=plan)
        staging = _of_single_blocks(division)
    names = _defined(emit(case, division, staging))
    verdict = tried(
        bench.copy,
        bench.expected,
        bench.task,
        bench.mesh,
        lambda copied: names["divide"](copied, bench.mesh),
    )
    return "" if verdict else f"tried on a small copy, it is not what one device computes: {verdict}"


def _of_single_blocks(division: Division) -> Staging:
    """Return stages that may begin and end with any block."""
    prefix = f"{division.container}." if division.container else ""
    blocks = tuple(f"{prefix}{index}" for index in range(division.blocks))
    return Staging(
        blocks=blocks, stages=tuple((block,) for block in blocks), alike=Alike(sizes=(), dtype="float32")
    )


def _refusal(reason: str) -> tuple[str, str]:
    return (
        f"this model's division is not written in torch's own styles: {reason}",
        "emit for torchrun or slurm: their scripts run this plan through auto_parallelize",
    )
