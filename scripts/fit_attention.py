# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Fit how attention's kernels approach their rate, and write ``profiles/attention``.

    rate = R * keys/(keys + keys_half) * rows/(rows + rows_half) * width/(width + width_half)

of causal forwards, by the keys that a query sees in the mean, half of the tokens; by rows, which are
queries times heads of all samples; and by the elements of a head. Fitted as ``fit_matmul`` fits products,
with the same five folds, here over (keys, rows).

The table's newest kernels are those of inference. Of cuDNN's for training a few long runs are in
``scripts/data/attention_training.csv``: their ``keys_half`` is looked for with the table's other halves. A
device's efficiencies of attention are its rates at 4,096 keys, a million rows and heads of 128, which this
prints: divide them by the long-run factor and the sustained rate.

Usage: python scripts/fit_attention.py kernels_attention.csv
The table's columns: gpu, batch_size, seq_len, num_heads, num_key_value_heads, head_dim, latency_ms, kernel
(ai-dynamo/aiconfigurator, Apache-2.0).
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fit_matmul import PROFILES, Floats, cross_validated, fit, log_rate, percent_error

from parastrat.hardware import ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_WIDTH

SOURCE = (
    "ai-dynamo/aiconfigurator systems/data @095f58a, Apache-2.0: attention latencies through vLLM; "
    "training: NVIDIA/cudnn-frontend benchmark @b740542, @06ddf80, @3929da2; fitted by "
    "scripts/fit_attention.py"
)
TIMED = Path(__file__).resolve().parent / "data" / "attention_training.csv"
REFERENCE = np.array([[ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_WIDTH]])
#: curves that ``profiles/curves`` has, and the table's GPU
TARGETS = {
    "a100-sxm4": "A100-80GB-SXM",
    "h100-sxm5": "H100-80GB-SXM",
    "h200-sxm": "H200",
    "b200": "B200",
    "gb200": "GB200",
    "b300": "B300",
    "gb300": "GB300",
    "l40s": "L40S",
    "rtx-pro-6000": "RTX-PRO-6000",
}
#: of those that have kernels of their own for training the GPU these were timed on
TRAINING = {
    "h100-sxm5": "H200",
    "h200-sxm": "H200",
    "b200": "GB200",
    "gb200": "GB200",
    "b300": "GB300",
    "gb300": "GB300",
}
#: where the table has FlashAttention-3 the second is what it is on an A100
SECOND_OF = {"h100-sxm5": "a100-sxm4", "h200-sxm": "a100-sxm4"}
WIDTHS = (64, 128)
#: shorter or smaller ones are bound by their launch
LEAST_TOKENS, LEAST_ROWS = 512, 16384
#: of the sides keys and rows, whose kernels stand in one fold
SEEN = slice(0, 2)


@dataclass(frozen=True, slots=True)
class Curve:
    """Halves of keys, rows and width, and what they are of."""

    keys: float
    rows: float
    width: float
    of: str

    def toml(self) -> str:
        """Return the curve as a section's lines."""
        return (
            f"# {self.of}\nkeys_half = {self.keys:.0f}\nrows_half = {self.rows:.0f}\n"
            f"width_half = {self.width:.0f}\n"
        )


def read_kernels(path: Path, gpu: str) -> tuple[Floats, Floats]:
    """Return keys, rows and widths, and the rates in FLOP/s."""
    with path.open(newline="") as file:
        table = np.array(
            [
                [
                    float(row[key])
                    for key in ("batch_size", "seq_len", "num_heads", "head_dim", "latency_ms")
                ]
                for row in csv.DictReader(file)
                if row["gpu"] == gpu
            ]
        )
    samples, tokens, heads, width, milliseconds = table.T
    rows, keys = samples * heads * tokens, tokens / 2
    rates = 4 * rows * keys * width / milliseconds * 1e3
    kept = np.isin(width, WIDTHS) & (tokens >= LEAST_TOKENS) & (rows >= LEAST_ROWS)
    return np.stack([keys, rows, width], axis=1)[kept], rates[kept]


def fitted(path: Path, gpu: str) -> Curve:
    """Return the curve of a table's kernels."""
    sides, rates = read_kernels(path, gpu)
    parameters = fit(sides, rates)
    error = cross_validated(sides, rates, SEEN)
    keys, rows, width = np.exp(parameters[1:])
    if len(np.unique(sides[:, 2])) == 1:
        width = 0.0
    print(
        f"{gpu:14s} {len(rates):5d} kernels  five folds {error:5.2f} %  "
        f"in-sample {percent_error(parameters, sides, rates).mean():5.2f} %  "
        f"at reference {np.exp(log_rate(parameters, REFERENCE))[0] / 1e12:.0f} TFLOP/s"
    )
    return Curve(keys, rows, width, f"{gpu}, {len(rates)} kernels, error {error:.1f} %")


def of_training(gpu: str, kernels: str, like: Curve) -> Curve:
    """Return a curve like another, but with the keys' half that a few kernels for training have."""
    with TIMED.open(newline="") as file:
        own = [row for row in csv.DictReader(file) if (row["gpu"], row["kernels"]) == (gpu, kernels)]
    keys = np.array([float(row["seq_len"]) / 2 for row in own])
    rows = np.array(
        [
            float(row["batch_size"]) * float(row["num_heads"]) * 2 * half
            for row, half in zip(own, keys, strict=True)
        ]
    )
    rates = np.array([float(row["forward_tflops"]) for row in own])
    backward = np.array([float(row["backward_tflops"]) for row in own])

    def levels(half: float) -> Floats:
        level: Floats = np.log(rates * (1 + half / keys) * (1 + like.rows / rows))
        return level

    def spread(half: float) -> float:
        found = levels(half)
        return float(np.abs(found - np.median(found)).mean())

    half = min(range(0, 1000, 10), key=spread)
    at = np.exp(np.median(levels(half))) / (1 + half / ATTENTION_KEYS) / (1 + like.rows / ATTENTION_ROWS)
    print(
        f"{gpu:14s} {len(own):5d} kernels of training, {kernels}: keys_half {half}, within "
        f"{100 * spread(half):.1f} %, at reference {at:.0f} TFLOP/s, backward at "
        f"{np.median(backward / rates):.2f} of forward's rate"
    )
    return Curve(
        half, like.rows, like.width, f"{gpu}, {len(own)} kernels of training; other halves of {like.of}"
    )


def main() -> None:
    """Fit and write every curve that rests on kernels of its own."""
    parser = argparse.ArgumentParser(description="Fit profiles/attention to a table of measured kernels.")
    parser.add_argument("kernels", type=Path, help="kernels_attention.csv")
    path: Path = parser.parse_args().kernels
    known = {name: fitted(path, gpu) for name, gpu in TARGETS.items()}
    of_training("H200", "second", known["a100-sxm4"])
    for name, own in known.items():
        parts = {"second": known[SECOND_OF.get(name, name)]}
        if name in TRAINING:
            parts["newest"] = of_training(TRAINING[name], "newest", own)
        told = "".join(f"\n[{part}]\n{curve.toml()}" for part, curve in parts.items())
        (PROFILES / "attention" / f"{name}.toml").write_text(
            f'# Written by scripts/fit_attention.py; not by hand.\nsource = "{SOURCE}"\n{told}'
        )


if __name__ == "__main__":
    main()
