"""The closed form's peaks beside dry runs of plans drawn at random, as ``dry_runs.py`` compares them.

Usage: python benchmarks/drawn_dry_runs.py COUNT [--seed S] [--state FILE] [--until HH:MM] [--kind KIND]

Models of every kind (presets cut to a few blocks; families in closed form without a preset; models that
are traced), with lengths, micro-batches, meshes, schedules, recompute policies, formats and optimizers that
no rule of severity error rejects and that ``auto_parallelize`` applies. Printed are those off by more than
3 %, estimates that are too low first, and those that a dry run refuses. The state keeps what dry runs
found, one line each, by what was run.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from dry_run_combinations import MODELS
from dry_run_models import BLOCKS, builder_name, cut, decoders
from dry_run_peaks import REFUSING, Compared, job_of, most_of_tensors, read_state, summary, told

from parastrat.assess import assess, columns_of
from parastrat.case import Facts
from parastrat.chunked_loss import USUAL_CHUNKS
from parastrat.cli.facts import source_of
from parastrat.errors import ParastratError, WrapError
from parastrat.finding import Severity
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.rules import findings_of
from parastrat.runtime.dry_run import preload, ranks_to_run
from parastrat.runtime.dry_run.rank import OPTIMIZERS
from parastrat.runtime.dry_run.ranks import run_kinds
from parastrat.runtime.refusals import check_plan
from parastrat.schedules import SINGLE, V_SHAPED
from parastrat.workload import Optimizer, Precision, Workload

if TYPE_CHECKING:
    from parastrat.model import ModelSource

CONFIGS = Path(gettempdir()) / "parastrat_drawn_dry_runs"
STATE = CONFIGS / "drawn.jsonl"
HARDWARE = "dgx-h100:16"
#: of severity error; that a plan does not fit says nothing here
_ALLOWED = ("PS101",)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
#: tokens of a micro-batch
_MOST_TOKENS = 2**17

_SIZES: dict[str, Any] = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 5632,
    "vocab_size": 50304,
    "max_position_embeddings": 32768,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 16,
    "num_local_experts": 16,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 1408,
    "intermediate_size": 2048,
}
_DENSE = (
    *("granite", "cohere", "cohere2", "starcoder2", "stablelm", "glm", "glm4", "smollm3", "exaone4"),
    *("olmo3", "arcee", "ernie4_5", "helium", "hunyuan_v1_dense", "seed_oss", "nanochat", "ministral"),
)
_MIXED = ("phimoe", "granitemoe", "olmoe", "qwen2_moe", "glm4_moe", "minimax_m2")
#: families in closed form that no preset is of
IN_CLOSED_FORM: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_DENSE, _SIZES),
    **dict.fromkeys(_MIXED, _SIZES | _EXPERTS),
    "gptj": {"n_embd": 2048, "n_head": 16, "n_positions": 32768, "rotary_dim": 64},
    "gpt_neo": {},
    "gpt_bigcode": {"n_embd": 2048, "n_head": 16, "n_positions": 8192},
}
#: those that are traced, with their classes
TRACED = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "vit": "ViTForImageClassification",
    "dinov2": "Dinov2ForImageClassification",
    "codegen": "CodeGenForCausalLM",
}
#: labels of Whisper's; its config does not say whose length that is
_LONGEST_SPEECH = 448
_DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "n_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A plan of a model."""

    kind: str
    model: str
    blocks: int
    plan: Plan
    length: int | None
    optimizer: Optimizer
    chunks: int = 1

    @property
    def key(self) -> str:
        """What names it in a state."""
        p = self.plan
        words = [
            f"{self.model}, {self.blocks} blocks, {p.mesh}, length {self.length}",
            f"micro-batch {p.micro_batch_size} x {p.gradient_accumulation_steps}",
            f"recompute {p.recompute}, {p.precision}, {self.optimizer}",
        ]
        if p.pp_schedule is not None:
            words.append(f"{p.pp_schedule.value} of {p.virtual_stages}")
        if p.shards_parameters:
            words.append("resharded" if p.reshard_after_forward else "kept gathered")
        words += ["sp"] * p.sequence_parallel + ["loss"] * p.loss_parallel
        words += [f"loss in {self.chunks} chunks"] * (self.chunks > 1)
        return ", ".join(words)

    @property
    def ref(self) -> str:
        if self.kind == "preset":
            return f"{MODELS}:{builder_name(self.model, self.blocks)}"
        return str(config_of(self.model, self.blocks))

    @property
    def source(self) -> ModelSource:
        return _preset(self.model, self.blocks) if self.kind == "preset" else _of_config(self.ref)

    @property
    def job(self) -> Facts:
        """The facts that it is judged on."""
        workload = Workload(
            global_batch_size=self.plan.global_batch_size,
            sequence_length=self.length,
            optimizer=self.optimizer,
            precision=self.plan.precision,
            loss_chunks=self.chunks,
        )
        return job_of(self.source, workload, HARDWARE)


@cache
def _preset(model: str, blocks: int) -> ModelSource:
    return cut(model, blocks)


@cache
def _of_config(ref: str) -> ModelSource:
    return source_of(ref)


@cache
def config_of(family: str, blocks: int) -> Path:
    """Return the config of a family with so many blocks, written where it can be read."""
    import transformers  # noqa: PLC0415 - only where it is asked for
    from transformers.models.auto.modeling_auto import (  # noqa: PLC0415 - as above
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    of_family = transformers.CONFIG_MAPPING[family]
    name = TRACED.get(family) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    sizes = IN_CLOSED_FORM.get(family, {})
    names, known = getattr(of_family, "attribute_map", {}), of_family().to_dict()
    table = {names.get(each, each): size for each, size in sizes.items() if names.get(each, each) in known}
    for each in _DEPTHS:
        if names.get(each, each) in known:
            table[names.get(each, each)] = blocks
    if "head_dim" in known and family == "olmoe":
        table["head_dim"] = None
    if "attention_types" in known:
        table["attention_types"] = [[["global", "local"], blocks // 2]]
        table["num_layers"] = 2 * (blocks // 2)
    table |= {
        each: 1
        for each in ("pad_token_id", "bos_token_id", "eos_token_id")
        if isinstance(known.get(each), int)
    }
    table |= {each: 0.0 for each, value in known.items() if "drop" in each and isinstance(value, float)}
    made = of_family(**table, architectures=[name], use_cache=False).to_dict()
    folder = CONFIGS / f"{family}-{blocks}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({each: v for each, v in made.items() if _is_plain(v)}), encoding="utf-8")
    return path


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def draw(d: random.Random, kind: str | None) -> Drawn:
    """Return a plan, allowed or not."""
    kind = kind or d.choices(("preset", "closed", "traced"), (6, 2, 2))[0]
    mesh = Mesh(
        pp=d.choices((1, 2, 3, 4), (6, 3, 1, 2))[0],
        dp_replicate=d.choices((1, 2, 4), (6, 2, 1))[0],
        dp_shard=d.choices((1, 2, 4, 8, 16), (5, 1, 2, 3, 2))[0],
        cp=d.choices((1, 2, 4), (6, 2, 1))[0],
        tp=d.choices((1, 2, 4, 8), (6, 2, 2, 1))[0],
        ep=d.choices((1, 2, 4, 8), (1, 1, 1, 1))[0],
    )
    schedule, virtual = None, 1
    if mesh.pp > 1:
        schedule = d.choice(list(PipelineSchedule))
        virtual = 1 if schedule in SINGLE else 2 if schedule in V_SHAPED else d.choice((1, 2, 2, 3))
    stages = mesh.pp * virtual
    blocks = max(BLOCKS, stages + d.choice((0, 0, 0, 1, 2))) if mesh.pp > 1 else BLOCKS
    steps = d.choice((1, 2, 4))
    if mesh.pp > 1:
        steps = mesh.pp * d.choice((1, 2, 2, 4)) + d.choice((0, 0, 0, 1))
    model = _model(d, kind)
    sharded = mesh.dp_shard * mesh.cp > 1
    tensor = mesh.tp > 1
    precision = d.choices(
        (Precision.BF16_MIXED, Precision.BF16, Precision.FP16_MIXED, Precision.FP32), (6, 3, 1, 2)
    )[0]
    plan = Plan(
        mesh=mesh,
        micro_batch_size=d.choice((1, 2, 3, 4, 6, 8)),
        gradient_accumulation_steps=steps,
        precision=precision,
        backend=Backend.NCCL,
        shard=Shard.PARAMETERS if sharded else Shard.NONE,
        reshard_after_forward=sharded and mesh.pp == 1 and d.random() < 0.5,
        sequence_parallel=tensor and d.random() < 0.7,
        loss_parallel=tensor and d.random() < 0.6,
        recompute=d.choice(list(Recompute)),
        pp_schedule=schedule,
        virtual_stages=virtual,
    )
    chunks = USUAL_CHUNKS if kind != "traced" and d.random() < 0.15 else 1
    return Drawn(
        kind=kind,
        model=model,
        blocks=blocks,
        plan=plan,
        length=d.choice(LENGTHS),
        optimizer=d.choice(list(OPTIMIZERS)),
        chunks=chunks,
    )


def _model(d: random.Random, kind: str) -> str:
    if kind == "closed":
        return d.choice(list(IN_CLOSED_FORM))
    if kind == "traced":
        return d.choice(list(TRACED))
    families = of_families()
    return d.choice(families[d.choice(list(families))])


@cache
def of_families() -> dict[str, list[str]]:
    """Return the presets of each family of transformers."""
    found: dict[str, list[str]] = {}
    for name in decoders():
        found.setdefault(cut(name).model_type or "", []).append(name)
    return found


def allowed(each: Drawn) -> Drawn | None:
    """Return a plan whose lengths the model takes, if nothing rejects it."""
    plan = each.plan
    try:
        check_plan(plan)
        source = each.source
        if not source.has_tokens:
            each = replace(each, length=None, chunks=1)
        elif each.model == "whisper":
            each = replace(each, length=min(each.length or 0, _LONGEST_SPEECH))
        elif source.max_sequence_length is not None and (each.length or 0) > source.max_sequence_length:
            each = replace(each, length=source.max_sequence_length)
        if plan.micro_batch_size * (each.length or 1) > _MOST_TOKENS:
            return None
        job = each.job
    except WrapError:
        return None
    except ParastratError as error:
        print(f"{each.key}: no estimate, {error.message}", flush=True)
        return None
    if plan.mesh.world_size > job.hardware.world_size:
        return None
    case = assess(job, plan)
    for finding in findings_of(case, columns_of(case)):
        if finding.code in REFUSING or (
            finding.severity is Severity.ERROR and finding.code not in _ALLOWED
        ):
            return None
    return each


def compared(each: Drawn, known: dict[str, Any] | None) -> Compared[Drawn]:
    """Return a plan's estimate beside its dry run."""
    job = each.job
    estimate = most_of_tensors(job, each.plan)
    if known is not None:
        return Compared(of=each, dry_run=known["peak"], estimate=estimate, refused=known["refused"])
    try:
        found = run_kinds(each.ref, each.plan, job.workload, ranks_to_run(job.model, each.plan))
    except ParastratError as error:
        return Compared(of=each, dry_run=None, estimate=estimate, refused=error.message)
    return Compared(of=each, dry_run=max(one.peak for one in found), estimate=estimate)


def drawn(count: int, seed: int, kind: str | None) -> list[Drawn]:
    """Return so many plans that nothing rejects."""
    d = random.Random(seed)  # noqa: S311  (a draw that can be repeated)
    found: list[Drawn] = []
    while len(found) < count:
        each = allowed(draw(d, kind))
        if each is not None:
            found.append(each)
    return found


def main() -> None:
    """Print every comparison, then those that are off, and those that are refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=STATE)
    parser.add_argument("--until", help="of the clock: no dry run begins later")
    parser.add_argument("--kind", choices=("preset", "closed", "traced"))
    given = parser.parse_args()
    CONFIGS.mkdir(parents=True, exist_ok=True)
    plans, lines = drawn(given.count, given.seed, given.kind), read_state(given.state)
    preload("transformers.models.llama.modeling_llama")
    found = (told(each, compared, given.state, lines, given.until) for each in plans)
    every = [each for each in found if each is not None]
    ran = sorted((each for each in every if each.dry_run is not None), key=lambda each: each.error)
    off = [each for each in ran if abs(each.error) > 0.03]
    print("", *off, *(each for each in every if each.dry_run is None), sep="\n")
    print(f"drawn {len(plans)}, ran {len(ran)}: {summary(ran) if ran else ''}")


if __name__ == "__main__":
    main()
