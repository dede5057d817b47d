"""From flags to facts: names are looked up, and what was not stated is assumed by one function each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import gcd, log2
from typing import TYPE_CHECKING

from parastrat.case import Facts
from parastrat.errors import ModelError, UsageError
from parastrat.hardware import DeviceType
from parastrat.model import Family
from parastrat.profiles import load_hardware, load_stack
from parastrat.sources import load_source
from parastrat.sources.training import default_optimizer, trained_model
from parastrat.units import MOST_RANKS
from parastrat.workload import Workload, usual_precision

if TYPE_CHECKING:
    from parastrat.cli.flags import JobFlags
    from parastrat.hardware import Hardware
    from parastrat.model import ModelSource, ModelSpec
    from parastrat.workload import Precision

AUTO = "auto"

#: stacks that differ in torch.compile alone
_PLAIN, _COMPILED = "torch", "torch-compile"

#: samples of one step where nothing says more
_TOKENS_PER_STEP = 4 * 2**20
_SAMPLES_PER_DEVICE = 32
#: tokens of one forward or one step, beyond which bytes would leave 64 bits
_MOST_TOKENS_AT_ONCE = 2**34
#: longer sequences are a choice that somebody makes
_LONGEST_ASSUMED = 4096

_HUB = "hf:"
_CALLABLE = re.compile(r"(?P<place>.+):(?P<name>[A-Za-z_][\w.]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The facts, and the model in other ways."""

    facts: Facts
    source: ModelSource

    def model_at(self, sequence_length: int | None, precision: Precision) -> ModelSpec:
        """Return the model at another sequence length, in another number format."""
        workload = replace(self.facts.workload, sequence_length=sequence_length, precision=precision)
        return trained_model(self.source, workload, self.facts.stack.kernels)


def resolved(flags: JobFlags) -> Job:
    """Return the job that the flags describe, defaults filled in.

    Raises:
        ParastratError: for names that are unknown, files that cannot be read, and sizes that do not go
            together.
    """
    hardware = hardware_of(flags.on, flags.ranks_per_node)
    stack = load_stack(flags.stack)
    source = source_of(flags.model)
    workload = workload_of(flags, source, hardware)
    model = trained_model(source, workload, stack.kernels)
    return Job(
        facts=Facts(model=model, hardware=hardware, workload=workload, stack=stack),
        source=source,
    )


def compiled_facts(job: Job) -> Facts | None:
    """Return a job of plain torch with torch.compile on every block.

    None for another stack; on processors, where nothing is known of compiled blocks; of a model that is
    traced, which is done in eager mode; and of one whose compiled form has other products, as Llama 4 in
    torchtitan and in transformers: a compiler leaves none out.
    """
    facts = job.facts
    plain = facts.stack.name == _PLAIN and facts.hardware.device.type is not DeviceType.CPU
    if not plain or load_source(job.source.ref) is None:
        return None
    stack = load_stack(_COMPILED)
    model = trained_model(job.source, facts.workload, stack.kernels)
    return replace(facts, stack=stack, model=model) if model.flops == facts.model.flops else None


def hardware_of(ref: str, ranks_per_node: int | None) -> Hardware:
    """Return named hardware, or this machine for ``auto``.

    Raises:
        ProfileError: unknown or malformed.
        UsageError: more devices than a search can go through.
        ProbeError: this machine cannot be read.
    """
    if ref == AUTO:
        from parastrat.probe import probe_hardware

        hardware = probe_hardware(ranks_per_node=ranks_per_node)
    else:
        hardware = load_hardware(ref, ranks_per_node=ranks_per_node)
    if hardware.world_size > MOST_RANKS:
        nodes = MOST_RANKS // hardware.devices_per_node
        raise UsageError(
            f"--on {ref}: {hardware.world_size:,} devices are more than parastrat plans for",
            hint=f"name at most {nodes:,} nodes" if nodes else f"name at most {MOST_RANKS:,} devices",
        )
    return hardware


def source_of(ref: str) -> ModelSource:
    """Return a model by name or file; one that only torch can build is built and traced.

    Raises:
        ModelError: unknown, unreadable, or torch is needed and missing.
    """
    if not ref.strip():
        raise ModelError("MODEL is empty", hint="name a preset such as llama-3.1-8b, or path.py:callable")
    source = load_source(ref)
    if source is not None:
        return source
    if find_spec("torch") is None:
        raise ModelError(f"{ref} has to be built, which needs torch", hint="pip install torch")
    if _CALLABLE.fullmatch(ref) is None or ref.startswith(_HUB):
        from parastrat.runtime.tracing.hf_models import built_source

        return built_source(ref)
    from parastrat.runtime.tracing.trace import traced_source

    return traced_source(ref)


def workload_of(flags: JobFlags, source: ModelSource, hardware: Hardware) -> Workload:
    """Return what the flags say of the training, and assume the rest.

    Raises:
        UsageError: a sequence length for samples without tokens, or a batch of absurd size.
    """
    if flags.seq_len is not None and not source.has_tokens:
        raise UsageError(
            f"--seq-len {flags.seq_len}: a sample of {source.ref} has no tokens", hint="leave --seq-len out"
        )
    length = flags.seq_len or default_sequence_length(source)
    batch = flags.global_batch or default_global_batch(source, length, hardware)
    check_countable(batch, length, "a global batch")
    stated = {
        "sequence_length": flags.seq_len,
        "global_batch_size": flags.global_batch,
        "precision": flags.precision,
        "optimizer": flags.optimizer,
    }
    return Workload(
        global_batch_size=batch,
        sequence_length=length,
        optimizer=flags.optimizer or default_optimizer(source),
        precision=flags.precision or usual_precision(hardware.device),
        loss_chunks=flags.loss_chunks,
        assumed=tuple(
            name
            for name, value in stated.items()
            if value is None and (length is not None or name != "sequence_length")
        ),
    )


def check_countable(samples: int, length: int | None, what: str) -> None:
    """Check that the bytes of so many samples can be counted.

    Raises:
        UsageError: they are too many.
    """
    tokens = samples * (length or 1)
    if tokens > _MOST_TOKENS_AT_ONCE:
        each = "" if length is None else f" of {length:,} tokens"
        raise UsageError(
            f"{what} of {samples:,} samples{each} is more than parastrat counts",
            hint=f"at most {_MOST_TOKENS_AT_ONCE:,} tokens at once",
        )


def default_sequence_length(source: ModelSource) -> int | None:
    """Return the published training's length, else what positions allow, at most 4,096."""
    if not source.has_tokens:
        return None
    return source.defaults.sequence_length or min(
        source.max_sequence_length or _LONGEST_ASSUMED, _LONGEST_ASSUMED
    )


def default_global_batch(source: ModelSource, sequence_length: int | None, hardware: Hardware) -> int:
    """Return the published batch, else 4 Mi tokens or 32 samples a device, that all devices can share.

    It is a power of two times the odd part of the number of devices: three nodes cannot share 512 samples.
    """
    world = hardware.world_size
    if source.defaults.global_batch_size is not None:
        batch = source.defaults.global_batch_size
    elif sequence_length is None:
        batch = _SAMPLES_PER_DEVICE * world
    else:
        batch = 2 ** round(log2(max(1, _TOKENS_PER_STEP / sequence_length)))
    least = world if source.family is Family.CONVOLUTIONAL else _fewest_data_ranks(hardware)
    return _shareable(max(batch, least), world)


def _fewest_data_ranks(hardware: Hardware) -> int:
    """Return the data-parallel ranks of all devices where tensor parallelism fills every fast domain."""
    return hardware.world_size // gcd(hardware.world_size, hardware.scale_up_devices)


def _shareable(batch: int, world: int) -> int:
    """Return the batch, or the nearest power-of-two multiple of the odd part of ``world``."""
    odd = world // (world & -world)
    if batch % odd == 0:
        return batch
    return odd << max(0, round(log2(batch / odd)))
