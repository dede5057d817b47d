"""Hardware figures that explain measured times."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from parastrat.calibration.timings import Operation, precisions
from parastrat.errors import ProbeError
from parastrat.hardware import FigureKind, MatmulCurve, Provenance
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from parastrat.calibration.timings import Machinery, Timing
    from parastrat.hardware import Device, Hardware, Link, Rates

#: residuals of a time's logarithm beyond this count linearly
_HUBER = 0.05
#: by how much logarithms of what is fitted are moved, from e down to a thousandth
_STEPS = tuple(2.0**-power for power in range(11))
#: a step is worth so much of the mean loss
_WORTH = 1e-9
#: sides at which half of the rate is reached are looked for around this
_HALF = 32.0
#: a hop of a ring is looked for around this, seconds
_HOP_S = 2e-5
_RATES = {Precision.FP32: "fp32", Precision.BF16: "bf16"}
_RINGS = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
#: what attention was timed with
HEADS, HEAD_DIM = 8, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One figure before and after, in SI units."""

    #: name of the hardware's field, such as ``device.memory_bytes_per_s``
    field: str
    before: float | None
    #: how the figure before was known; None where nothing says it
    kind: FigureKind | None
    after: float
    #: mean error of the times that it is to explain, over those; of one time alone its spread
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The hardware as it was measured, with what was measured."""

    hardware: Hardware
    machinery: Machinery
    timings: tuple[Timing, ...]
    fits: tuple[Fit, ...]


def calibrated(
    hardware: Hardware, timings: Sequence[Timing], machinery: Machinery, alone: Sequence[Timing] = ()
) -> Calibration:
    """Return the hardware with the figures that follow from measurements on one of its nodes.

    Large products give the sustained rates, others the curve, ``rate = ceiling * sustained * m/(m + m_half)
    * ...``; copies, which read and write each byte, the memory's rate; all-gathers and reduce-scatters the
    link, ``t = (n-1) * latency + (n-1)/n * bytes / rate``; all-reduces what they gain over two of those.

    Args:
        hardware: the cluster.
        timings: of ``wanted``, which all processes of the node do at once.
        machinery: what measured.
        alone: of ``wanted_alone``, which one process does.

    Raises:
        ProbeError: products or copies are missing.
    """
    of: dict[Operation, list[Timing]] = defaultdict(list)
    for timing in timings:
        of[timing.wanted.operation].append(timing)
    missing = [each for each in (Operation.MATMUL, Operation.COPY, Operation.LAUNCH) if not of[each]]
    if missing:
        raise ProbeError(f"no {missing[0]} was measured", hint="see what the processes say above")
    device, fits = _device(hardware.device, of, machinery)
    if alone:
        device, more = _with_whole(device, of, alone, machinery)
        fits += more
    found = replace(hardware, device=device)
    if hardware.scale_up is not None and of[Operation.ALL_GATHER]:
        link, more = _link(hardware.scale_up, of, machinery)
        found, fits = replace(found, scale_up=link), [*fits, *more]
    return Calibration(hardware=found, machinery=machinery, timings=tuple(timings), fits=tuple(fits))


def _device(
    device: Device, of: Mapping[Operation, list[Timing]], machinery: Machinery
) -> tuple[Device, list[Fit]]:
    main = precisions(device)[0]
    # the largest product of each format is timed first
    largest = {each.wanted.precision: each for each in reversed(of[Operation.MATMUL])}
    rates = {precision: _flops(each) / each.seconds for precision, each in largest.items()}
    asymptote, curve, error = _curve(
        [each for each in of[Operation.MATMUL] if each.wanted.precision is main]
    )
    ceiling = asymptote / rates[main]
    figures = {
        **{
            f"sustained.{_RATES[precision]}": (
                rate,
                error if precision is main else largest[precision].spread,
            )
            for precision, rate in rates.items()
        },
        "memory_bytes_per_s": _of_one(of[Operation.COPY][0], 2 * of[Operation.COPY][0].wanted.bytes),
        "launch_s": (of[Operation.LAUNCH][0].seconds, of[Operation.LAUNCH][0].spread),
    }
    for each in of[Operation.MAKE]:
        # what was made was read from another tensor, and written
        beside = each.seconds - 2 * each.wanted.bytes / figures["memory_bytes_per_s"][0]
        if beside > 0:
            figures["fresh_bytes_per_s"] = each.wanted.bytes / beside, each.spread
    for each in of[Operation.ATTENTION]:
        # a query sees half of the keys in the mean
        tokens = each.wanted.sides[0]
        slowed = device.attention.slowed(tokens / 2, tokens * HEADS, HEAD_DIM)
        figures["attention_efficiency"] = _of_one(each, slowed * _flops(each) / rates[main])
    for each in of[Operation.UPLOAD]:
        figures["host_bytes_per_s"] = _of_one(each, each.wanted.bytes)
    plain: dict[str, Any] = {name: value for name, (value, _) in figures.items() if "." not in name}
    measured = replace(
        device,
        **plain,
        sustained=_with_rates(device.sustained, rates),
        # no peak lies below what products reach, and those that keep to a cache may outdo the largest
        peak=_with_rates(
            device.peak, {p: max(rate, ceiling * rate, _rate(device.peak, p)) for p, rate in rates.items()}
        ),
        matmul=replace(curve, ceiling=ceiling),
        provenance=_provenance(device.provenance, (*figures, "matmul"), machinery),
    )
    return measured, [
        _fit("device", device, name, value, error) for name, (value, error) in figures.items()
    ]


def _with_whole(
    device: Device, of: Mapping[Operation, list[Timing]], alone: Sequence[Timing], machinery: Machinery
) -> tuple[Device, list[Fit]]:
    """Return a processor with the shares that one process with all cores reaches of what several do."""
    names = {Operation.MATMUL: "whole_products", Operation.MAKE: "whole_memory"}
    figures = {}
    for each in alone:
        together = of[each.wanted.operation][0]
        share = together.seconds / each.seconds
        figures[names[each.wanted.operation]] = min(share, 1.0), max(each.spread, together.spread)
    values: dict[str, Any] = {name: value for name, (value, _) in figures.items()}
    found = replace(device, **values, provenance=_provenance(device.provenance, tuple(figures), machinery))
    return found, [_fit("device", device, name, value, error) for name, (value, error) in figures.items()]


def _link(link: Link, of: Mapping[Operation, list[Timing]], machinery: Machinery) -> tuple[Link, list[Fit]]:
    ranks = machinery.ranks
    rings = [each for operation in _RINGS for each in of[operation]]

    def ring_s(latency_s: float, rate: float, timing: Timing) -> float:
        return (ranks - 1) * (latency_s + timing.wanted.bytes / ranks / rate)

    def errors(logs: Sequence[float]) -> list[float]:
        latency_s, rate = map(math.exp, logs)
        return [math.log(ring_s(latency_s, rate, each) / each.seconds) for each in rings]

    logs, error = least(errors, [math.log(_HOP_S), math.log(link.bytes_per_s)])
    latency_s, rate = map(math.exp, logs)
    figures: dict[str, Any] = {"bytes_per_s": rate, "latency_s": latency_s}
    whole = max(of[Operation.ALL_REDUCE], key=lambda each: each.wanted.bytes, default=None)
    if whole is not None:
        figures["all_reduce_gain"] = 2 * ring_s(0.0, rate, whole) / whole.seconds
    found = replace(
        link,
        **figures,
        # fitted without them
        curves=None,
        nominal_bytes_per_s=max(link.nominal_bytes_per_s, rate),
        provenance=_provenance(link.provenance, tuple(figures), machinery),
    )
    return found, [_fit("scale_up", link, name, value, error) for name, value in figures.items()]


def _curve(products: Sequence[Timing]) -> tuple[float, MatmulCurve, float]:
    """Return the rate that large products approach, how others fall short, and the mean error."""
    fastest = max(_flops(each) / each.seconds for each in products)

    def errors(logs: Sequence[float]) -> list[float]:
        rate, *halves = map(math.exp, logs)
        return [
            math.log(_flops(each) / rate / each.seconds)
            + sum(math.log1p(half / side) for half, side in zip(halves, each.wanted.sides, strict=True))
            for each in products
        ]

    logs, error = least(errors, [math.log(fastest), *[math.log(_HALF)] * 3])
    rate, m_half, n_half, k_half = map(math.exp, logs)
    return rate, MatmulCurve(ceiling=1.0, m_half=m_half, n_half=n_half, k_half=k_half), error


def least(
    errors: Callable[[Sequence[float]], Sequence[float]], start: Sequence[float]
) -> tuple[list[float], float]:
    """Return the values with the least Huber loss of their errors, and the mean error there.

    One value is moved at a time, by steps that halve when none helps.

    Args:
        errors: of some values, which are logarithms of what is fitted.
        start: values to begin with.
    """

    def loss(values: Sequence[float]) -> float:
        return statistics.fmean(
            error**2 / 2 if abs(error) < _HUBER else _HUBER * (abs(error) - _HUBER / 2)
            for error in errors(values)
        )

    best, lowest = list(start), loss(start)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for place in range(len(best)):
                for moved in (best[place] - step, best[place] + step):
                    tried = [*best[:place], moved, *best[place + 1 :]]
                    if (found := loss(tried)) < lowest - _WORTH:
                        best, lowest, improved = tried, found, True
    return best, statistics.fmean(map(abs, errors(best)))


def _flops(timing: Timing) -> float:
    """Return a product's FLOPs, or those of the lower half of attention's scores."""
    if timing.wanted.operation is Operation.ATTENTION:
        return 4 * timing.wanted.sides[0] ** 2 * HEADS * HEAD_DIM / 2
    return 2.0 * math.prod(timing.wanted.sides)


def _of_one(timing: Timing, amount: float) -> tuple[float, float]:
    return amount / timing.seconds, timing.spread


def _rate(rates: Rates, precision: Precision) -> float:
    return getattr(rates, _RATES[precision]) or 0.0


def _with_rates(rates: Rates, found: Mapping[Precision, float]) -> Rates:
    return replace(rates, **{_RATES[precision]: rate for precision, rate in found.items()})


def _fit(part: str, owner: Device | Link, name: str, value: float, error: float) -> Fit:
    outer, _, inner = name.partition(".")
    before = getattr(owner, outer)
    stated = {entry.field: entry.kind for entry in owner.provenance}
    return Fit(
        field=f"{part}.{name}",
        before=getattr(before, inner) if inner else before,
        kind=stated.get(name, stated.get(outer)),
        after=value,
        error=error,
    )


def _provenance(
    known: Sequence[Provenance], fields: Sequence[str], machinery: Machinery
) -> tuple[Provenance, ...]:
    """Return where figures come from, after some of them were measured."""
    source = f"measured here by `parastrat calibrate` on {machinery.date}: {machinery}"
    outer = {name.partition(".")[0] for name in fields}
    kept = [
        entry
        for entry in known
        if entry.field not in (*fields, *outer - {"sustained"})
        and not (entry.field == "sustained" and "sustained.fp32" in fields)
    ]
    return (
        *kept,
        *(Provenance(field=name, kind=FigureKind.MEASURED, source=source) for name in fields),
    )
