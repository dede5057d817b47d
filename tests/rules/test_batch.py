from __future__ import annotations

from builders import case, codes

from parastrat.model import Family
from parastrat.rules.batch import global_batch_does_not_divide


def test_fewer_samples_than_ranks() -> None:
    assert "PS401" in codes(global_batch_size=7, dp_shard=8)
    assert "PS401" not in codes(global_batch_size=8, dp_shard=8)


def test_global_batch_does_not_divide() -> None:
    assert "PS402" in codes(global_batch_size=12, dp_shard=8)
    assert "PS402" in codes(global_batch_size=16, dp_shard=8)
    assert "PS402" not in codes(global_batch_size=16, dp_shard=8, gradient_accumulation_steps=2)
    assert "PS402" not in codes(global_batch_size=2, tp=4, micro_batch_size=2)
    assert "PS402" not in codes(global_batch_size=7, dp_shard=8)


def test_batch_fixes_divide() -> None:
    def fix(batch: int) -> str:
        return global_batch_does_not_divide.hit(
            case(global_batch_size=batch, dp_shard=8, micro_batch_size=4)
        ).fix

    assert fix(100) == "use a global batch of 96 or 128"
    assert fix(96) == "use 3 accumulation steps"
    assert fix(48) == (
        "use a global batch of 32 or 64, or a micro-batch of 3 or 6, which divide a rank's 6 samples"
    )


def test_sequence_exceeds_positions() -> None:
    assert "PS403" in codes(sequence_length=2048, max_sequence_length=1024)
    assert "PS403" not in codes(sequence_length=1024, max_sequence_length=1024)
    assert "PS403" not in codes(sequence_length=1024, max_sequence_length=None)


def test_batch_statistics_of_few_samples() -> None:
    assert "PS404" in codes(family=Family.CONVOLUTIONAL, dp_replicate=2, micro_batch_size=8)
    assert "PS404" not in codes(family=Family.CONVOLUTIONAL, dp_replicate=2, micro_batch_size=16)
    assert "PS404" not in codes(family=Family.CONVOLUTIONAL, micro_batch_size=8)
    few = {"family": Family.CONVOLUTIONAL, "dp_replicate": 2, "micro_batch_size": 8}
    # ConvNeXt normalises each sample by itself
    assert ["PS404" in codes(**few, changing_buffers=known) for known in (None, True, False)] == [
        True,
        True,
        False,
    ]
    assert "PS404" not in codes(family=Family.DECODER, dp_replicate=2, micro_batch_size=8)
