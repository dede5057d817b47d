# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Fit the matrix-multiply curve of a device to measured kernels and write ``profiles/curves``.

    rate(m, n, k) = R * m/(m + m_half) * n/(n + n_half) * k/(k + k_half)

is fitted to bf16 kernels of at least 17 GFLOP (smaller ones are launch-bound) whose arithmetic
intensity is above the device's ridge (the others are memory-bound; the cost model counts both
elsewhere), by minimising the Huber loss of the log rate. The error is printed as MAPE over five folds
of (n, k): no shape of a fold's weights was seen in its fit.

The kernels ran warm and alone, in short runs. A training step holds the device at its power limit for
hours and is slower: the public table of sustained multiplies, whose best shape ``sustained`` is, says by
how much. So the long-run factor is the fastest kernel here over that, and

    ceiling = R / (long-run factor * sustained.bf16) = R / the fastest kernel

where ``ceiling * sustained`` is what a large multiply reaches inside a long step. No training run was
fitted to.

Usage: python scripts/fit_matmul.py kernels_gemm.csv
The table's columns: gpu, dtype, m, n, k, latency_ms, kernel (ai-dynamo/aiconfigurator, Apache-2.0).
"""

from __future__ import annotations

import argparse
import csv
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SOURCE = "ai-dynamo/aiconfigurator systems/data @095f58a, Apache-2.0: bf16 GEMM latencies through vLLM"
PROFILES = Path(__file__).resolve().parents[1] / "profiles"
LEAST_FLOPS = 17e9
#: residuals of the log rate beyond this count linearly
HUBER = 0.05
FOLDS = 5
#: of the sides n and k, those of a product's weights
WEIGHTS = slice(1, 3)
#: shapes with sides from here on tell devices with one curve apart
LARGE_SIDE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One curve: the table's GPU, and the profile whose sustained rate the curve is relative to."""

    gpu: str
    #: profile with the sustained bf16 rate; None: no public table has it
    device: str | None
    #: datasheet bf16 FLOP/s over memory bytes/s
    ridge: float
    #: curve whose halves serve, where the table's own shapes look faulty
    halves_of: str | None = None


TARGETS = {
    "a100-sxm4": Target(gpu="A100-80GB-SXM", device="a100-sxm4-80", ridge=312 / 2.039),
    "h100-sxm5": Target(gpu="H100-80GB-SXM", device="h100-sxm5", ridge=989.4 / 3.352),
    "h200-sxm": Target(gpu="H200", device="h200-sxm", ridge=989.4 / 4.8),
    "b200": Target(gpu="B200", device="b200", ridge=2250 / 7.7),
    "gb200": Target(gpu="GB200", device="gb200", ridge=2500 / 8, halves_of="b200"),
    "b300": Target(gpu="B300", device="b300", ridge=2250 / 8),
    "gb300": Target(gpu="GB300", device="gb300", ridge=2500 / 8),
    "l40s": Target(gpu="L40S", device=None, ridge=362 / 0.864),
    "rtx-pro-6000": Target(gpu="RTX-PRO-6000", device="rtx-pro-6000", ridge=503 / 1.792),
}
#: for a device of which no public table has the sustained rate
OF_A100 = "the A100's factor: its own sustained rate is in no public table"


def read_kernels(path: Path, target: Target) -> tuple[Floats, Floats]:
    """Return the sides, as rows (m, n, k), and the rates in FLOP/s of compute-bound kernels."""
    with path.open(newline="") as file:
        rows = [
            (float(row["m"]), float(row["n"]), float(row["k"]), float(row["latency_ms"]))
            for row in csv.DictReader(file)
            if row["gpu"] == target.gpu and row["dtype"] == "bf16"
        ]
    table = np.array(rows)
    sides, seconds = table[:, :3], table[:, 3] / 1e3
    flops = 2 * sides.prod(axis=1)
    m, n, k = sides.T
    moved_bytes = 2 * (m * n + n * k + m * k)
    kept = (flops >= LEAST_FLOPS) & (flops > target.ridge * moved_bytes)
    return sides[kept], flops[kept] / seconds[kept]


def log_rate(parameters: Floats, sides: Floats) -> Floats:
    """Return the curve's log rate; ``parameters`` are logs of (R, m_half, n_half, k_half)."""
    rate: Floats = parameters[0] - np.log1p(np.exp(parameters[1:]) / sides).sum(axis=1)
    return rate


def fit(sides: Floats, rates: Floats) -> Floats:
    """Return the parameters of least Huber loss, by reweighted Gauss-Newton steps with damping."""
    target = np.log(rates)
    parameters = np.array([target.max(), *np.log([30.0, 30.0, 30.0])])
    for _ in range(200):
        residual = target - log_rate(parameters, sides)
        weight = np.minimum(1.0, HUBER / np.maximum(np.abs(residual), 1e-12))
        halves = np.exp(parameters[1:])
        jacobian = np.hstack([np.ones((len(sides), 1)), -halves / (sides + halves)])
        normal = jacobian.T @ (weight[:, None] * jacobian) + 1e-6 * len(sides) * np.eye(4)
        step = np.linalg.solve(normal, jacobian.T @ (weight * residual))
        parameters = parameters + np.clip(step, -0.5, 0.5)
        # a side without any effect drifts to minus infinity; one thousandth of a row is none
        parameters[1:] = np.maximum(parameters[1:], np.log(1e-3))
    return parameters


def percent_error(parameters: Floats, sides: Floats, rates: Floats) -> Floats:
    """Return |predicted time / measured time - 1| in percent."""
    error: Floats = np.abs(rates / np.exp(log_rate(parameters, sides)) - 1) * 100
    return error


def cross_validated(sides: Floats, rates: Floats, held_together: slice = WEIGHTS) -> float:
    """Return the MAPE of the time over folds of shapes that are equal in some sides, in percent."""
    _, group = np.unique(sides[:, held_together], axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.random.default_rng(0).permutation(group.max() + 1) % FOLDS
    errors = []
    for fold in range(FOLDS):
        held = order[group] == fold
        errors.append(percent_error(fit(sides[~held], rates[~held]), sides[held], rates[held]))
    return float(np.concatenate(errors).mean())


def sustained_bf16(device: str) -> float:
    """Return a device profile's sustained bf16 rate, FLOP/s."""
    table = tomllib.loads((PROFILES / "devices" / f"{device}.toml").read_text())
    return float(table["sustained_tflops"]["bf16"]["value"]) * 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Measured kernels, the logarithms of the curve's parameters, and its error over folds, percent."""

    target: Target
    sides: Floats
    rates: Floats
    parameters: Floats
    error: float

    @property
    def fastest(self) -> float:
        """The rate of the fastest kernel."""
        return float(self.rates.max())


def fitted(kernels: Path, target: Target) -> Fit:
    """Return the curve of a target's own kernels."""
    sides, rates = read_kernels(kernels, target)
    return Fit(
        target=target,
        sides=sides,
        rates=rates,
        parameters=fit(sides, rates),
        error=cross_validated(sides, rates),
    )


def like(own: Fit, other: Fit) -> Fit:
    """Return another's curve, as much higher as the kernels of large shapes are faster in the median."""
    known = dict(zip(map(tuple, other.sides), other.rates, strict=True))
    ratios = [
        rate / known[shape]
        for shape, rate in zip(map(tuple, own.sides), own.rates, strict=True)
        if shape in known and min(shape) >= LARGE_SIDE
    ]
    parameters = other.parameters.copy()
    parameters[0] += np.log(np.median(ratios))
    return replace(own, parameters=parameters)


def long_run(found: Fit, of_a100: float) -> tuple[float, str]:
    """Return how much slower long runs are than these kernels, and why."""
    if found.target.device is None:
        return of_a100, OF_A100
    factor = found.fastest / sustained_bf16(found.target.device)
    return factor, "the fastest of these kernels over the sustained rate of the device's profile"


def curve_toml(name: str, found: Fit, of_a100: float) -> str:
    """Return a curve's file."""
    top, m_half, n_half, k_half = np.exp(found.parameters)
    inside = percent_error(found.parameters, found.sides, found.rates)
    factor, why = long_run(found, of_a100)
    device = found.target.device
    sustained = sustained_bf16(device) if device else found.fastest
    ceiling = top / (factor * sustained)
    print(
        f"{name:12s} rows {len(found.rates):5d}  five folds {found.error:5.2f} %  "
        f"in-sample {inside.mean():5.2f} %  R {top / 1e12:7.1f} TFLOP/s  "
        f"halves {m_half:.0f} {n_half:.0f} {k_half:.0f}  long run {factor:.3f}  ceiling {ceiling:.4f}"
    )
    halves = f"; halves of {found.target.halves_of}" if found.target.halves_of else ""
    return f"""# Written by scripts/fit_matmul.py; not by hand.
source = "{SOURCE}; fitted by scripts/fit_matmul.py{halves}"
gpu = "{found.target.gpu}"
rows = {len(found.rates)}
# mean absolute error of the time, five folds over (n, k)
error_percent = {found.error:.2f}
# the short kernels' asymptote
short_run_tflops = {top / 1e12:.1f}
long_run_factor = {{ value = {factor:.3f}, kind = "derived", source = "{why}" }}

[matmul]
ceiling = {ceiling:.4f}
m_half = {m_half:.1f}
n_half = {n_half:.1f}
k_half = {k_half:.1f}
"""


def main() -> None:
    """Fit and write every curve that rests on kernels of its own."""
    parser = argparse.ArgumentParser(description="Fit profiles/curves to a table of measured kernels.")
    parser.add_argument("kernels", type=Path, help="kernels_gemm.csv")
    kernels: Path = parser.parse_args().kernels
    found = {name: fitted(kernels, target) for name, target in TARGETS.items()}
    of_a100, _ = long_run(found["a100-sxm4"], 1.0)
    for name, own in found.items():
        halves_of = own.target.halves_of
        curve = like(own, found[halves_of]) if halves_of else own
        (PROFILES / "curves" / f"{name}.toml").write_text(curve_toml(name, curve, of_a100))


if __name__ == "__main__":
    main()
