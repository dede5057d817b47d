"""What ``estimate`` says of the room that a plan takes, and of what would take less."""

from __future__ import annotations

from cli.conftest import Typed

LLAMA_8B = ("estimate", "llama-3.1-8b", "--on", "dgx-h100:1")
LLAMA_70B = ("estimate", "llama-3.1-70b", "--on")


def told(typed: Typed, *words: str) -> str:
    return " ".join(typed(*words).out.split())


def test_what_a_pipeline_receives_into_is_named(typed: Typed) -> None:
    page = told(typed, *LLAMA_70B, "dgx-h100:8", "--tp", "8", "--pp", "8")
    assert (
        "89 %: buffers of the pipeline for what it receives of all micro-batches of a step less with"
        in page
    )
    assert "fix: give each pipeline fewer samples" in page
    assert "the root's gradients" not in page


def test_what_a_stage_keeps_gathered_is_lessened_by_fewer_layers(typed: Typed) -> None:
    page = told(typed, *LLAMA_70B, "dgx-h100:2", "--pp", "2")
    assert "not reduced yet less with more stages or tensor parallelism" in page
    assert "fix: hold fewer layers on a rank, of which FSDP2 keeps all gathered: more pp, or tp" in page
    sizes = [
        typed(*LLAMA_70B, "dgx-h100:2", *more, "--json").answer["estimate"]["memory"]["total"]
        for more in (("--pp", "2"), ("--pp", "4"), ("--pp", "2", "--tp", "2"))
    ]
    assert max(sizes[1:]) < 0.8 * sizes[0]


def test_gradients_that_wait_are_those_of_ddp_or_of_the_root(typed: Typed) -> None:
    ddp = told(typed, *LLAMA_8B, "--strategy", "ddp")
    assert "17 %: DDP's buckets, beside the gradients" in ddp
    assert "the root's gradients" not in ddp


def test_activations_are_those_of_blocks_that_still_keep_some(typed: Typed) -> None:
    """The head had run backward, and its activations were told beside those of layers."""
    page = told(typed, "estimate", "mixtral-8x7b", "--on", "dgx-h100:2", "--ep", "8")
    assert "as expert layer (1 of 32) runs backward" in page
    assert "recompute full (8.0 GiB by 32 x expert layer)" in page


def test_names_of_moments_are_whole(typed: Typed) -> None:
    page = typed("estimate", "gpt-oss-20b", "--on", "cpu:4", "--ep", "4", "--global-batch", "4").out
    assert "  backward expert layer at the end " in page
    assert max(map(len, page.splitlines())) <= 80


def test_what_the_optimizer_takes_is_not_lessened_by_smaller_micro_batches(typed: Typed) -> None:
    page = told(typed, *LLAMA_70B, "dgx-h100:1", "--tp", "8")
    assert "while the optimizer steps" in page
    assert "fix: offload the optimizer to host memory, or use more devices than 8" in page
    # tp has all eight: there is nothing to shard over
    assert "less with fsdp2 on more devices, which shards them" in page


def test_a_single_lane_waits_for_none(typed: Typed) -> None:
    page = told(typed, "estimate", "llama-3.1-8b", "--on", "dgx-h100:2", "--tp", "16")
    assert "-0.0" not in page
    assert "nothing waits" in page
