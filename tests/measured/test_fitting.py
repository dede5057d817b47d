"""A stack's constants, corrected by runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured.rows import run as row_of

from parastrat.correction import StackFit
from parastrat.measured.constants import CONSTANTS, EVERY_CONSTANT, constants_of, rate_of
from parastrat.measured.fitting import Run, fitted, predicted, runs_of, unsureness
from parastrat.measured.jobs import job_of
from parastrat.profiles import load_stack
from parastrat.stack import Stack

STACK = load_stack("torch")
#: runs that wait for other things: products, attention, small kernels, the network
SHAPES = (
    {"model": "llama-3.1-8b", "micro_batch": 4, "global_batch": 32},
    {"model": "llama-3.1-8b", "micro_batch": 1, "global_batch": 8, "seq_len": 65536, "cp": 8, "dp": 1},
    {"model": "gpt2", "micro_batch": 1, "global_batch": 8, "seq_len": 512},
    {"model": "gpt2-xl", "micro_batch": 2, "global_batch": 16, "seq_len": 1024},
    {"model": "llama-3.1-8b", "micro_batch": 1, "global_batch": 64, "gpus": 64, "dp": 64},
    {"model": "llama-2-13b", "micro_batch": 1, "global_batch": 64, "gpus": 64, "dp": 64, "seq_len": 1024},
)


def on(stack: Stack, table: str | None = None, times: int = 1) -> list[Run]:
    """Return runs that take what the model says of this stack, each shape a table or all in one.

    Several of one shape are each of a somewhat longer sequence: runs alike would do the same work.
    """
    runs = []
    for number, shape in enumerate(SHAPES):
        for more in range(times):
            length = {"seq_len": int(str(shape.get("seq_len", 8192))) + 16 * more}
            job = job_of(row_of(**{"dp": 8, **shape, **length}))
            one = Run(table=table or f"table{number}", stack="torch", job=job, seconds=1.0)
            runs.append(replace(one, seconds=predicted(one, stack)))
    return runs


def after(fit: StackFit) -> dict[str, float]:
    return {each.name: each.after for each in fit.constants}


def test_runs_of_the_stack_as_it_is_change_nothing() -> None:
    fit = fitted(on(STACK), STACK)
    assert fit.stack == STACK
    assert max(map(abs, fit.after)) == pytest.approx(0, abs=1e-12)


def test_without_runs_the_stack_stays_and_ranges_are_those_of_before() -> None:
    fit = fitted([], STACK)
    assert fit.stack == STACK
    matmul = fit.constants[0]
    # 80 % of a normal distribution of the logarithm, sigma 0.03
    assert (matmul.low, matmul.high) == (pytest.approx(0.962, abs=1e-3), pytest.approx(1.039, abs=1e-3))


@pytest.mark.parametrize(("name", "value"), [("attention_factor", 0.7), ("launches_per_operator", 8.0)])
def test_what_only_one_constant_explains_is_found(name: str, value: float) -> None:
    changed = replace(STACK, **{name: value})
    if name == "launches_per_operator":
        changed = replace(changed, launches_per_dispatch=2.0)
    fit = fitted(on(changed, times=8), STACK)
    found = next(each for each in fit.constants if each.name == name)
    assert found.after == pytest.approx(value, rel=0.05)
    assert found.low < value < found.high
    assert sum(map(abs, fit.after)) < 0.1 * sum(map(abs, fit.before))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("matmul_factor", {"matmul_factor": 0.9}),
        # what torch dispatches moves with what closed forms count
        ("elementwise_factor", {"elementwise_factor": 1.8, "dispatched_factor": 1.665}),
    ],
)
def test_what_others_explain_too_is_found_where_they_are_known(name: str, values: dict[str, float]) -> None:
    constant = next(each for each in CONSTANTS if each.name == name)
    fit = fitted(on(replace(STACK, **values), times=8), STACK, [constant])
    assert fit.changes == {field: pytest.approx(value, rel=0.01) for field, value in values.items()}


def test_one_run_moves_constants_less_than_many() -> None:
    runs = on(replace(STACK, matmul_factor=0.8), times=8)
    one, all_of_them = after(fitted(runs[:1], STACK)), after(fitted(runs, STACK))
    assert STACK.matmul_factor > one["matmul_factor"] > all_of_them["matmul_factor"]


def test_overlaps_move_together_and_stay_shares() -> None:
    hidden = replace(STACK, fsdp_overlap=0.9, dp_overlap=0.8, zero_overlap=0.4)
    overlap = next(each for each in CONSTANTS if each.is_share)
    moved = fitted(on(hidden, times=8), STACK, [overlap]).changes
    assert moved["fsdp_overlap"] > STACK.fsdp_overlap
    assert all(0 <= moved[field] <= 1 for field in ("dp_overlap", "zero_overlap", "fsdp_overlap"))
    assert moved["zero_overlap"] - STACK.zero_overlap == pytest.approx(
        moved["fsdp_overlap"] - STACK.fsdp_overlap, abs=1e-3
    )


def test_a_table_of_many_runs_does_not_drown_another() -> None:
    slow, fast = replace(STACK, matmul_factor=0.8), replace(STACK, matmul_factor=1.1)
    both = fitted([*on(slow, "slow"), *on(fast, "fast", times=30)], STACK)
    alone = fitted(on(fast, "fast", times=30), STACK)
    assert after(both)["matmul_factor"] < after(alone)["matmul_factor"]


def test_runs_of_the_same_work_count_little_more_than_one_of_them() -> None:
    slow = replace(STACK, matmul_factor=0.8)
    one, *others = on(slow, "slow", times=8)[:8]
    wider = job_of(row_of(**{**SHAPES[0], "dp": 16, "gpus": 16, "global_batch": 128}))
    assert replace(one, job=wider).work == one.work != others[0].work
    assert replace(one, table="another").work != one.work
    alone, same, several = (
        after(fitted(runs, STACK, CONSTANTS[:1]))["matmul_factor"]
        for runs in ([one], [one] * 8, [one, *others])
    )
    # eight of which each two go together by 0.9 tell as much as 8 / 7.3 that do not
    assert STACK.matmul_factor > alone > same > several
    assert alone - same < 0.2 * (alone - several)


def test_runs_out_of_memory_or_without_a_time_are_left_out() -> None:
    rows = [row_of(step_time_s=4.0), row_of(), row_of(step_time_s=4.0, status="OOM"), row_of(stack="jax")]
    assert [run.seconds for run in runs_of(rows)] == [4.0]


def test_every_constant_is_a_field_of_a_stack() -> None:
    assert all(hasattr(STACK, field) for constant in EVERY_CONSTANT for field in constant.fields)


def test_constants_of_a_stack_are_those_that_its_profile_calls_fitted() -> None:
    fsdp1 = load_stack("fsdp1")
    assert {each.name for each in constants_of(fsdp1)} == set(fsdp1.fitted) != set()
    assert constants_of(replace(fsdp1, fitted=())) == CONSTANTS


def test_devices_have_rates_of_their_own_where_a_stack_fits_them() -> None:
    plain = replace(STACK, fitted=("network_efficiency",))
    several = replace(plain, fits_device_rates=True)
    names = [each.name for each in constants_of(several, ["h100-sxm5", "b200", "h100-sxm5"])]
    assert names == ["network_efficiency", "rate of b200", "rate of h100-sxm5"]
    assert [each.name for each in constants_of(plain, ["b200"])] == ["network_efficiency"]


def test_runs_of_one_device_move_its_rate_and_no_others() -> None:
    device = on(STACK)[0].job.facts.hardware.device.name
    slow = replace(STACK, device_rates=((device, 0.9),))
    moving = [rate_of("b200"), rate_of(device)]
    fit = fitted(on(slow, times=30), STACK, moving)
    assert after(fit) == {"rate of b200": 1.0, f"rate of {device}": pytest.approx(0.9, abs=0.01)}
    assert fit.stack.device_rates == (("b200", 1.0), (device, fit.constants[1].after))
    # it is known better than before, and was unsure before it could move
    run = on(STACK)[0]
    before, known = (unsureness(run, STACK, each, predicted) for each in (fitted([], STACK, moving), fit))
    assert known < before == pytest.approx(unsureness(run, STACK, fitted([], STACK), predicted))


def test_constants_that_were_not_fitted_stay_as_unsure_as_they_were() -> None:
    runs = on(STACK, times=30)
    rate = CONSTANTS[:1]
    of_any, of_one = (
        unsureness(runs[0], STACK, fitted([], STACK, each), predicted) for each in (CONSTANTS, rate)
    )
    # without runs it does not matter which constants might have moved
    assert of_one == pytest.approx(of_any)
    now = unsureness(runs[0], STACK, fitted(runs, STACK, rate), predicted)
    all_but_rate = unsureness(
        runs[0], STACK, replace(fitted([], STACK, rate), covariance=((0.0,),)), predicted
    )
    assert all_but_rate < now < of_one


def test_what_waits_for_constants_that_are_little_known_is_unsure() -> None:
    runs = on(STACK)
    nothing, something = fitted([], STACK), fitted(runs, STACK)
    before = [unsureness(run, STACK, nothing, predicted) for run in runs]
    # launches of a small GPT-2 are known to 0.24, of products of Llama the rates to 0.03 and 0.04
    assert 0.12 < before[2] < 0.24
    assert 0.04 < before[0] < 0.15
    after_runs = [unsureness(run, STACK, something, predicted) for run in runs]
    assert all(now < then for now, then in zip(after_runs, before, strict=True))
    assert len(something.covariance) == len(CONSTANTS)


def test_runs_of_four_bits_stay_so_on_every_stack() -> None:
    stated = {"stack": "megatron-core", "hardware": "gb200-nvl72", "gpus": 4, "fsdp": "zero1"}
    (run,) = runs_of([row_of(precision="nvfp4", step_time_s=1.0, **stated)])
    core = load_stack("megatron-core")
    assert predicted(run, core) == predicted(run, replace(core, fp8_cast_bytes=0.0))
    assert predicted(run, core) < predicted(run, replace(core, fp4_cast_bytes=9.0))


def test_runs_with_a_scale_for_each_row_stay_so_on_every_stack() -> None:
    stated = {"stack": "torch-compile", "hardware": "dgx-h100", "gpus": 8, "step_time_s": 1.0}
    rows, tensors = runs_of(
        [row_of(precision=f"fp8 {scales}", **stated) for scales in ("rowwise", "tensorwise")]
    )
    stack = load_stack("torch-compile")
    slower = replace(stack, scaled_rows_factor=0.5 * stack.scaled_rows_factor)
    assert predicted(rows, stack) < predicted(rows, slower)
    assert predicted(tensors, stack) == predicted(tensors, slower)
    assert predicted(tensors, stack) < predicted(rows, stack)


def test_runs_exchange_with_experts_as_they_did_on_every_stack() -> None:
    stated = {
        "stack": "megatron-core",
        "model": "mixtral-8x7b",
        "gpus": 16,
        "dp": 16,
        "fsdp": "zero1",
        "ep": 8,
    }
    batch = {"micro_batch": 1, "global_batch": 16}
    core = load_stack("megatron-core")

    def seconds(**said: object) -> float:
        row = row_of(**stated, **batch, **said)
        return predicted(Run(table="own", stack=core.name, job=job_of(row), seconds=1.0), core)

    plain, hybrid = seconds(dispatcher="deepep"), seconds(dispatcher="hybridep")
    assert hybrid < plain < seconds(dispatcher="alltoall")
    assert seconds(dispatcher="hybridep", exchange_overlap=True) < hybrid


def test_runs_pad_their_vocabulary_as_they_did_on_every_stack() -> None:
    stated = {"stack": "megatron-deepspeed", "hardware": "dgx-a100", "model": "gpt2", "fsdp": "none"}
    own = load_stack("megatron-deepspeed")

    def seconds(**said: object) -> float:
        row = row_of(**stated, vocab=50257, seq_len=1024, **said)
        return predicted(Run(table="own", stack=own.name, job=job_of(row), seconds=1.0), own)

    assert seconds(vocab_padding="none") > 1.05 * seconds()
