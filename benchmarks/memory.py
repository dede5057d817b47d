"""Peak memory beside measurements, by source and metric, and what others' formulas make of the same runs.

Usage: python benchmarks/memory.py

Rows are those of benchmarks/data/peak_memory.csv, each predicted in its own metric without reading what was
measured; errors are predicted / measured - 1. Of others there are formulas that are public, written from
what these sources say, over the runs that they are for:

- accelerate, ``estimate-memory``: four times the weights in their number format for training with Adam,
  however they are divided (huggingface.co/docs/accelerate/usage_guides/model_size_estimator).
- DeepSpeed, ZeRO-3 without offload: 18 bytes of each parameter over all devices, and 4 of the largest layer
  (deepspeed.readthedocs.io/en/latest/memory.html), of runs without tensor parallelism and pipelines.
- Megatron-LM, ``report_theoretical_memory``: 6 + 12/dp bytes of each parameter of the fullest rank, and of
  each layer table 2 of arXiv:2205.05198 without sequence parallelism, recomputed or not, and 5 % more
  (megatron/training/theoretical_memory_usage.py), of Megatron's runs.

Programs that compute more than a formula (llm-analysis, calculon) are not run here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from accuracy import DATA, TABLES, error_line

from parastrat.comparison import Compared, Quantity, Summary, summary_of
from parastrat.measured import compared, read_rows
from parastrat.measured.jobs import MeasuredJob, job_of
from parastrat.measured.rows import MeasuredRow
from parastrat.model import ModelSpec
from parastrat.plan import Shard

_OURS = (
    "| table | metric | rows | median | mean | 90th percentile | bias | within the interval |",
    "|---|---|---:|---:|---:|---:|---:|---:|",
)
#: Megatron's factor for what its formula leaves out
_OVERHEAD = 1.05
_THEIRS = (
    "| formula | table | rows | median | 90th percentile | bias | ours: median | 90th percentile | bias |",
    "|---|---|---:|---:|---:|---:|---:|---:|---:|",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run with its peak, as it is predicted."""

    row: MeasuredRow
    job: MeasuredJob
    predicted: Compared


def measurements() -> list[Measurement]:
    """Return the runs whose peak is known."""
    table = read_rows(DATA / TABLES[Quantity.PEAK_MEMORY])
    rows = {row.id: row for row in table.rows}
    return [
        Measurement(row=rows[each.id], job=job_of(rows[each.id]), predicted=each)
        for each in compared(table).of(Quantity.PEAK_MEMORY)
        if each.measured is not None
    ]


def by_accelerate(run: Measurement) -> float | None:
    """Return the bytes that ``accelerate estimate-memory`` tells, in the run's number format."""
    facts, copies = run.job.facts, 4
    return copies * facts.workload.precision.compute_bytes * facts.model.parameters


def by_deepspeed(run: Measurement) -> float | None:
    """Return the bytes of ZeRO-3's model states; None where other axes divide the model, or experts are."""
    model, mesh = run.job.facts.model, run.job.plan.mesh
    if run.job.plan.shard is not Shard.PARAMETERS or mesh.tp * mesh.pp * mesh.ep > 1 or model.experts:
        return None
    return 4 * _table(model) + 18 * model.parameters / mesh.world_size


def by_megatron(run: Measurement) -> float | None:
    """Return the bytes of the first stage; None of a run that does not shard its optimizer alone."""
    model, plan, mesh = run.job.facts.model, run.job.plan, run.job.plan.mesh
    width = model.hidden
    if plan.shard is not Shard.OPTIMIZER or plan.sequence_parallel or width is None:
        return None
    tokens = plan.micro_batch_size * (model.sequence_length or 0)
    fullest = ((model.parameters - _table(model)) / mesh.pp + _table(model)) / mesh.tp
    # the layers of a stage, of as many micro-batches as there are stages
    kept = tokens * width * (10 + 24 / mesh.tp) * model.layers
    # what the embedding reads, and its dropout's mask
    kept += (8 + width) * tokens * mesh.pp
    if plan.virtual_stages > 1:
        kept *= 1 + (mesh.pp - 1) / (mesh.pp * plan.virtual_stages)
    else:
        kept *= min(1, plan.gradient_accumulation_steps / mesh.pp)
    if mesh.pp == 1:
        kept += 2 * tokens * (width + (model.vocab or 0) / mesh.tp)
    return (6 + 12 / mesh.dp) * fullest + _OVERHEAD * kept


def _table(model: ModelSpec) -> int:
    """Return the parameters of the vocabulary's table, the largest layer of most models."""
    return (model.vocab or 0) * (model.hidden or 0)


PEERS: dict[str, Callable[[Measurement], float | None]] = {
    "accelerate estimate-memory": by_accelerate,
    "DeepSpeed, ZeRO-3": by_deepspeed,
    "Megatron-LM": by_megatron,
}


def our_lines(found: Sequence[Measurement]) -> list[str]:
    """Return a line of errors for each table and metric."""
    groups: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for each in found:
        groups[each.predicted.origin, each.row.mem_metric or ""].append(each.predicted)
    return [error_line(*group, summary_of(own)) for group, own in groups.items()]


def their_lines(found: Sequence[Measurement]) -> list[str]:
    """Return a line for each formula and table with runs that it is for, with our errors over the same."""
    lines = []
    for name, formula in PEERS.items():
        groups: dict[str, list[tuple[Compared, Compared]]] = defaultdict(list)
        for each in found:
            told = formula(each)
            if told is not None:
                theirs = replace(each.predicted, predicted=told)
                groups[each.predicted.origin].append((theirs, each.predicted))
        for table, pairs in groups.items():
            sides = (_shares(summary_of(own)) for own in zip(*pairs, strict=True))
            lines.append(f"| {name} | {table} | {len(pairs)} | {' | '.join(sides)} |")
    return lines


def _shares(summary: Summary) -> str:
    return f"{100 * summary.median:.1f} % | {100 * summary.p90:.1f} % | {100 * summary.bias:+.1f} %"


def main() -> None:
    """Print our errors, and those of the formulas beside ours over the same runs."""
    found = measurements()
    print(*_OURS, *our_lines(found), "", *_THEIRS, *their_lines(found), sep="\n")


if __name__ == "__main__":
    main()
