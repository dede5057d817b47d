"""What would be recommended otherwise, a sentence for each question that was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.hardware import DeviceType, NetworkKind, Vendor
from parastrat.report.numbers import duration, percent
from parastrat.report.wording import offload_words, plan_name

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.hardware import Hardware
    from parastrat.result import Applied, Doubt, NetworkDoubt, SearchResult

#: a share of the step below which two are of one pace
_ALIKE = 0.0005
_MULTIPLES = {0.5: "half", 2.0: "double"}

#: programs that time collectives on devices
_TESTS = {
    (DeviceType.CUDA, Vendor.NVIDIA): "nccl-tests",
    (DeviceType.CUDA, Vendor.AMD): "rccl-tests",
    (DeviceType.HPU, Vendor.INTEL): "hccl_demo",
}
#: networks whose rate perftest's programs tell
_RDMA = {NetworkKind.INFINIBAND, NetworkKind.ROCE, NetworkKind.EFA}


def answers_otherwise(chosen: Case, result: SearchResult) -> list[str]:
    """Return what the answers to other questions would change about the chosen plan."""
    return [
        *_applied(chosen, result.applied),
        *_nearby(chosen, result.nearby_batch),
        *_in_chunks(chosen, result.chunked_loss),
        *_compiled(chosen, result.compiled),
        *_offloaded(chosen, result.offloaded),
        *_doubted(result.network_doubt, chosen.hardware),
    ]


def _applied(chosen: Case, applied: Applied | None) -> list[str]:
    """Return what the reader gets who wants a plan that ``auto_parallelize`` applies."""
    if applied is None:
        return []
    other = applied.case
    if other is None:
        return ["of the plans that auto_parallelize applies itself none can run"]
    longer = other.estimate.time.step / chosen.estimate.time.step - 1
    alike = abs(longer) < _ALIKE
    more = "as fast" if alike else f"{percent(abs(longer))} {'more' if longer >= 0 else 'less'}"
    pace = f"{duration(other.estimate.time.step)}, {more}"
    return [f"auto_parallelize itself applies {plan_name(other)}: {pace} (--applied)"]


def _nearby(chosen: Case, other: Case | None) -> list[str]:
    """Return what a global batch close by would give, of which as many samples are compared."""
    if other is None:
        return []
    batch, own = (case.workload.global_batch_size for case in (other, chosen))
    here, there = (case.estimate.time.step / case.workload.global_batch_size for case in (chosen, other))
    gain = f"{duration(other.estimate.time.step)}, {percent(1 - there / here)} less for each sample"
    divides = f"a global batch of {batch:,} instead of {own:,} divides better"
    return [f"{divides}: {plan_name(other)} in {gain} (--global-batch {batch})"]


def _in_chunks(chosen: Case, other: Case | None) -> list[str]:
    """Return what a loss in chunks would give."""
    if other is None:
        return []
    here, there = (case.estimate.time.step for case in (chosen, other))
    chunks = other.workload.loss_chunks
    gain = f"{plan_name(other)} in {duration(there)}, {percent(abs(1 - there / here))} "
    gain += "less" if there <= here else "more, but simpler"
    return [f"with the loss in chunks (chunked_cross_entropy): {gain} (--loss-chunks {chunks})"]


def _compiled(chosen: Case, other: Case | None) -> list[str]:
    """Return what compiled blocks would give."""
    if other is None:
        return []
    stack = other.stack.name
    return [f"with torch.compile on every block: {_faster_by(chosen, other)} (--stack {stack})"]


def _offloaded(chosen: Case, other: Case | None) -> list[str]:
    """Return what offloading would give, with the rates that it rests on."""
    if other is None:
        return []
    what = other.plan.offload.value
    rates = f"at {offload_words(other)}; auto_parallelize does not apply it"
    gain = _faster_by(chosen, other)
    return [f"with the {what} offloaded to host memory: {gain} (--offload {what}), {rates}"]


def _faster_by(chosen: Case, other: Case) -> str:
    """Return another plan with its step and what it is less."""
    here, there = (case.estimate.time for case in (chosen, other))
    tie = "maybe a tie: " if there.may_tie(here) else ""
    return f"{tie}{plan_name(other)} in {duration(there.step)}, {percent(1 - there.step / here.step)} less"


def _doubted(doubt: NetworkDoubt | None, hardware: Hardware) -> list[str]:
    """Return what another rate between nodes would change, also where that is nothing."""
    if doubt is None:
        return []
    known = f"the network's {doubt.bytes_per_s / 1e9:.3g} GB/s a device is {doubt.kind.value}, not measured"
    flips = [_flip(each) for each in doubt.doubts if each.flips]
    if not flips:
        factors = " and ".join(_MULTIPLES[each.factor] for each in doubt.doubts)
        return [f"{known}: at {factors} of it the recommendation stands"]
    return [f"{known}: {'; '.join(flips)}; measure it between two nodes ({_tools(hardware)})"]


def _tools(hardware: Hardware) -> str:
    """Name what measures the network between such nodes."""
    wire = "ib_write_bw" if hardware.network.kind in _RDMA else "iperf3"
    tests = _TESTS.get((hardware.device.type, hardware.device.vendor))
    return f"{tests}, {wire}" if tests else wire


def _flip(doubt: Doubt) -> str:
    here, there = (duration(case.estimate.time.step) for case in (doubt.chosen, doubt.other))
    multiple, other = _MULTIPLES[doubt.factor], plan_name(doubt.other)
    simpler = ", which is simpler," if doubt.simpler else ""
    return f"at {multiple} of it {other}{simpler} would be taken ({there}, this plan {here})"
