from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import device, hardware

from parastrat.cli.facts import (
    compiled_facts,
    default_global_batch,
    default_optimizer,
    default_sequence_length,
    hardware_of,
    resolved,
    source_of,
)
from parastrat.cli.flags import JobFlags
from parastrat.errors import ModelError, ProfileError, UsageError
from parastrat.hardware import DeviceType
from parastrat.model import Family, TrainingDefaults
from parastrat.workload import Optimizer, Precision, usual_precision

H100 = "dgx-h100:2"
NOTHING_PUBLISHED = TrainingDefaults()


@dataclass(frozen=True)
class Source:
    """What the defaults read of a model."""

    defaults: TrainingDefaults = NOTHING_PUBLISHED
    family: Family = Family.DECODER
    has_tokens: bool = True
    max_sequence_length: int | None = 131072
    ref: str = "made-up"

    def at(self, *_: object) -> object:
        raise NotImplementedError


def test_the_published_length_goes_before_what_positions_allow() -> None:
    assert default_sequence_length(Source(TrainingDefaults(sequence_length=8192))) == 8192
    assert default_sequence_length(Source()) == 4096
    assert default_sequence_length(Source(max_sequence_length=512)) == 512
    assert default_sequence_length(Source(max_sequence_length=None)) == 4096


def test_samples_without_tokens_have_no_length() -> None:
    assert default_sequence_length(Source(has_tokens=False)) is None


def test_the_published_batch_goes_before_four_mebitokens() -> None:
    assert default_global_batch(Source(TrainingDefaults(global_batch_size=1536)), 2048, hardware()) == 1536
    assert default_global_batch(Source(), 8192, hardware()) == 512
    assert default_global_batch(Source(), 3000, hardware()) == 1024


def test_without_tokens_every_device_gets_thirty_two_samples() -> None:
    images = Source(family=Family.CONVOLUTIONAL, has_tokens=False)
    assert default_global_batch(images, None, hardware(num_nodes=2)) == 32 * 16


def test_an_assumed_batch_can_be_shared_by_a_number_of_devices_that_is_no_power_of_two() -> None:
    assert default_global_batch(Source(), 8192, hardware(num_nodes=3)) == 384
    published = Source(TrainingDefaults(global_batch_size=2048))
    assert default_global_batch(published, 8192, hardware(num_nodes=3)) == 1536


def test_an_assumed_batch_has_a_sample_for_every_fast_domain() -> None:
    assert default_global_batch(Source(), 2**20, hardware(num_nodes=64)) == 64
    assert default_global_batch(Source(), 2**24, hardware()) == 1


def test_the_short_format_that_the_device_computes_is_assumed() -> None:
    assert usual_precision(device()) is Precision.BF16_MIXED
    assert usual_precision(device(bf16_native=False)) is Precision.FP16_MIXED
    assert usual_precision(device(type=DeviceType.CPU)) is Precision.FP32


def test_convolutions_are_trained_with_momentum() -> None:
    assert default_optimizer(Source()) is Optimizer.ADAMW
    assert default_optimizer(Source(family=Family.CONVOLUTIONAL)) is Optimizer.SGD_MOMENTUM
    assert default_optimizer(Source(TrainingDefaults(optimizer=Optimizer.ADAFACTOR))) is Optimizer.ADAFACTOR


def test_what_nobody_stated_is_named() -> None:
    workload = resolved(JobFlags(model="llama-3.1-8b", on=H100)).facts.workload
    assert set(workload.assumed) == {"sequence_length", "global_batch_size", "precision", "optimizer"}
    assert workload.sequence_length == 8192
    stated = JobFlags(
        model="llama-3.1-8b",
        on=H100,
        seq_len=2048,
        global_batch=64,
        precision=Precision.BF16,
        optimizer=Optimizer.MUON,
    )
    workload = resolved(stated).facts.workload
    assert workload.assumed == ()
    assert (workload.sequence_length, workload.global_batch_size) == (2048, 64)
    assert (workload.precision, workload.optimizer) == (Precision.BF16, Optimizer.MUON)


def test_images_have_no_length_to_assume() -> None:
    job = resolved(JobFlags(model="resnet-50", on=H100))
    assert "sequence_length" not in job.facts.workload.assumed
    assert job.model_at(None, Precision.FP32).sequence_length is None


def test_the_model_at_another_length() -> None:
    job = resolved(JobFlags(model="llama-3.1-8b", on=H100, seq_len=4096))
    assert job.model_at(2048, Precision.BF16_MIXED).sequence_length == 2048


@pytest.mark.parametrize(("name", "same"), [("mixtral-8x7b", True), ("llama-4-scout", False)])
def test_a_compiler_leaves_no_product_out(name: str, same: bool) -> None:
    """Llama 4 in transformers has other products than in torchtitan, whose blocks are compiled."""
    there = compiled_facts(resolved(JobFlags(model=name, on=H100)))
    assert (there is not None) == same


def test_a_length_for_images_is_refused() -> None:
    with pytest.raises(UsageError, match="no tokens"):
        resolved(JobFlags(model="resnet-50", on=H100, seq_len=128))


def test_auto_is_this_machine() -> None:
    here = hardware_of("auto", 2)
    assert here.name.startswith("auto")
    assert here.devices_per_node >= 1


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError) as model:
        source_of("llama-3.1-80b")
    assert "llama-3.1-8b" in model.value.hint
    with pytest.raises(ProfileError) as machine:
        hardware_of("dgx-h10:8", None)
    assert "dgx-h100" in machine.value.hint


def test_an_empty_model_is_refused() -> None:
    with pytest.raises(ModelError, match="empty"):
        source_of(" ")


def test_a_family_that_nobody_knows_needs_a_builder(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "nonesuch", "hidden_size": 64}')
    with pytest.raises(ModelError) as error:
        source_of(str(config))
    assert "callable" in error.value.hint
