"""What is known of a config file's case, and what the plan and case rules say of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from parastrat.assess import assess, columns_of
from parastrat.case import Case, Facts, Unknown
from parastrat.check.positions import ReadColumns
from parastrat.check.whole_jobs import stated_source, whole_case
from parastrat.columns import code_of
from parastrat.config_file import TORCHTITANS, ConfigFile, ConfigFormat
from parastrat.errors import ModelError, ParastratError, UnknownFactError
from parastrat.finding import Hit
from parastrat.memory.host import host_of
from parastrat.parse import FingerprintedModel, Parsed, resolved_ref
from parastrat.parse.frameworks import launch_fields, plan_fields, workload_fields
from parastrat.parse.megatron import megatron_sizes
from parastrat.plan import Offload
from parastrat.profiles import load_stack
from parastrat.rules import RULES, CaseRule, PlanRule, runtime_support
from parastrat.rules.rule import finding
from parastrat.sources import load_source
from parastrat.sources.training import trained_model
from parastrat.tables import hardware_columns, model_columns, plan_columns, workload_columns
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.finding import Finding
    from parastrat.hardware import Hardware
    from parastrat.model import ModelSource, ModelSpec
    from parastrat.rules import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the flags and the settings say beside the files."""

    model: str | None = None
    hardware: Hardware | None = None
    #: of the settings, for files that state none themselves
    usual_model: str | None = None
    usual_hardware: Hardware | None = None
    #: where a plan file's own paths begin
    folder: Path = Path()


class Part(Unknown):
    """Stands for a plan, a launch or a model of which a configuration states some fields."""

    __slots__ = ("_fields",)

    def __init__(self, fact: str, fields: Mapping[str, Any]) -> None:
        super().__init__(fact)
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            return self._fields[name]
        return super().__getattr__(name)


#: tokens at which a stated model is looked at
_LENGTH = 4096

_OF_MESH = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "dp", "world_size")

#: about what ``auto_parallelize`` applies: nothing to another framework's file
_OWN = {
    *(rule.code for rule in vars(runtime_support).values() if isinstance(rule, PlanRule | CaseRule)),
    "PS390",
    "PS391",
}
#: about training loops, which accelerate and DeepSpeed bring along
_OF_LOOPS = {"PS412"}

#: about what torchtitan and Megatron-LM do by themselves: making weights on devices, adding up the
#: gradients of an embedding that stages share
_OF_TRAINERS = {"PS107", "PS714"}
#: and torchtitan alone: a loss in chunks, beside every axis
_OF_TORCHTITAN = {"PS108", "PS109"}

#: a finding, and the facts that its rule has read
Judged = tuple["Finding", tuple[str, ...]]


def _is_foreign(rule: Rule, file: ConfigFile | Parsed) -> bool:
    """Return whether a rule is about what this file's framework does by itself."""
    if isinstance(file, Parsed):
        return False
    is_megatrons = file.get("megatron") is not None
    own = _OWN if file.format is ConfigFormat.SCRIPT and not is_megatrons else _OWN | _OF_LOOPS
    if is_megatrons or file.format in TORCHTITANS:
        own = own | _OF_TRAINERS
    if file.format is ConfigFormat.TORCHTITAN_PYTHON:
        own = own | _OF_TORCHTITAN
        if file.get("parallelism.module_fqns_per_model_part") is not None:
            # how even stages are is what these parts make of them
            own = own | {"PS711"}
    return rule.code in own


def known_case(file: ConfigFile | Parsed, given: Given) -> tuple[tuple[Judged, ...], tuple[str, ...]]:
    """Return what plan and case rules find, and the codes of those that need more facts."""
    case, columns = _of_plan_file(file, given) if isinstance(file, Parsed) else _of_config(file, given)
    found: list[Judged] = []
    unknown = []
    for rule in RULES:
        if not isinstance(rule, PlanRule | CaseRule) or _is_foreign(rule, file):
            continue
        reading = ReadColumns(columns)
        try:
            judged = _judged(rule, case, reading)
        except UnknownFactError:
            unknown.append(rule.code)
            continue
        if judged is not None:
            found.append((judged, tuple(reading.read)))
    return tuple(found), tuple(unknown)


def _judged(rule: Rule, case: Case, columns: ReadColumns) -> Finding | None:
    """Return what a rule says.

    Raises:
        UnknownFactError: its condition needs a fact that nobody stated.
    """
    if isinstance(rule, CaseRule):
        hit = rule.hit(case)
        return None if hit is None else finding(rule, hit)
    if not cast("PlanRule", rule).mask(columns):
        return None
    try:
        hit = cast("PlanRule", rule).hit(case)
    except UnknownFactError as error:
        # it fires for certain; only its words would need more
        fix = f"see `parastrat explain {rule.code}`; more is said where {error.fact} is known"
        hit = Hit(message=rule.title, fix=fix)
    return finding(rule, hit)


def _of_config(file: ConfigFile, given: Given) -> tuple[Case, dict[str, Any]]:
    hardware = given.hardware or given.usual_hardware
    source = _source(file, given)
    fields, workload = plan_fields(file), workload_fields(file)
    launch = cast("Any", Part("launch", launch_fields(file)))
    whole = whole_case(file, fields, workload, source, hardware, launch)
    if whole is not None:
        return whole, dict(columns_of(whole).known())
    model, sizes = None if source is None else _shape_of(source), megatron_sizes(file)
    # a part that is not known stands for itself
    case = Case(
        model=model or cast("Any", Part("model", sizes)),
        hardware=hardware or cast("Any", Unknown("hardware")),
        workload=cast("Any", Part("workload", workload)),
        stack=cast("Any", Unknown("stack")),
        plan=cast("Any", Part("plan", fields)),
        estimate=cast("Any", Unknown("estimate")),
        launch=launch,
    )
    columns = {**_part_columns(fields), **workload, **sizes}
    if hardware is not None:
        columns |= hardware_columns(hardware)
    if model is not None:
        columns |= model_columns(model)
    return case, columns


def stated_model(ref: str) -> ModelSpec:
    """Return a model by its shape; at which length it runs does not matter to that.

    Raises:
        ModelError: unknown, or only its own code could build it.
    """
    return _shape_of(_stated_source(ref))


def _source(file: ConfigFile, given: Given) -> ModelSource | None:
    """Return the model of a file: the one that is given, its own, or the settings'."""
    if given.model is not None:
        return _stated_source(given.model)
    own = stated_source(file)
    return own if own is not None or given.usual_model is None else _stated_source(given.usual_model)


def _stated_source(ref: str) -> ModelSource:
    source = load_source(ref)
    if source is None:
        raise ModelError(
            f"{ref} would have to be built, and the checker runs nobody's code",
            hint="name a preset or an HF config.json with --model",
        )
    return source


def _shape_of(source: ModelSource) -> ModelSpec:
    length = min(source.max_sequence_length or _LENGTH, _LENGTH) if source.has_tokens else None
    return source.at(length, Precision.FP32, load_stack("torch").kernels)


def _part_columns(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a plan of which some fields are known."""
    columns = {
        name: code_of(value) if isinstance(value, StrEnum) else value
        for name, value in fields.items()
        if name != "mesh"
    }
    if "mesh" in fields:
        columns |= {name: getattr(fields["mesh"], name) for name in _OF_MESH}
    return columns


def _of_plan_file(parsed: Parsed, given: Given) -> tuple[Case, dict[str, Any]]:
    stack = load_stack(parsed.stack or "torch")
    hardware = given.hardware or parsed.hardware or given.usual_hardware
    model = _model(parsed, given)
    plan = parsed.plan
    if model is not None and hardware is not None and parsed.workload is not None and plan is not None:
        workload = parsed.workload
        spec = trained_model(model, workload, stack.kernels)
        facts = Facts(model=spec, hardware=hardware, workload=workload, stack=stack)
        case = assess(facts, plan)
        if given.hardware is None and parsed.launch is not None:
            case = Case(**{**_parts(case), "launch": parsed.launch})
        return case, dict(columns_of(case).known())
    fingerprint = FingerprintedModel(parsed.model) if parsed.model else Unknown("model")
    case = Case(
        model=cast("Any", fingerprint),
        hardware=hardware or cast("Any", Unknown("hardware")),
        workload=parsed.workload or cast("Any", Unknown("workload")),
        stack=stack,
        plan=plan or cast("Any", Unknown("plan")),
        estimate=parsed.estimate or cast("Any", Unknown("estimate")),
        launch=parsed.launch or cast("Any", Unknown("launch")),
    )
    columns: dict[str, Any] = {}
    columns |= plan_columns(plan) if plan else {}
    columns |= hardware_columns(hardware) if hardware else {}
    columns |= workload_columns(parsed.workload) if parsed.workload else {}
    columns |= {"layers": parsed.model.blocks} if parsed.model else {}
    if parsed.estimate is not None:
        memory = parsed.estimate.memory
        columns |= {
            "memory_total": memory.total,
            "memory_margin": memory.margin,
            "memory_capacity": memory.capacity,
        }
    if plan is not None and hardware is not None and plan.offload is Offload.NONE:
        # of processes alone, which do not hang on the model
        columns |= host_of(case.facts, plan)
    return case, columns


def _parts(case: Case) -> dict[str, Any]:
    return {
        name: getattr(case, name)
        for name in ("model", "hardware", "workload", "stack", "plan", "estimate", "launch")
    }


def _model(parsed: Parsed, given: Given) -> Any:
    """Return the model in closed form; None where it is unknown or only torch could build it."""
    ref = given.model
    if ref is None and parsed.model is not None:
        ref = resolved_ref(parsed.model.ref, given.folder / "plan.toml")
    if ref is None:
        ref = given.usual_model
    if ref is None:
        return None
    try:
        return load_source(ref)
    except ModelError:
        if given.model is not None:
            raise
        return None
    except ParastratError:
        return None
