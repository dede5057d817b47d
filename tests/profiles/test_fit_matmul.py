"""The fit of the matrix-multiply curve, on kernels whose curve is known."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts/fit_matmul.py"))
TRUTH = np.array([np.log(800e12), *np.log([60.0, 20.0, 180.0])])


def shapes() -> np.ndarray:
    sides = np.array(np.meshgrid(*[[256, 1024, 2048, 8192, 16384]] * 3)).reshape(3, -1).T
    return sides.astype(float)


def test_a_known_curve_is_found_again() -> None:
    sides = shapes()
    found = SCRIPT["fit"](sides, np.exp(SCRIPT["log_rate"](TRUTH, sides)))
    assert np.exp(found) == pytest.approx(np.exp(TRUTH), rel=0.02)


def test_outliers_hardly_move_the_fit() -> None:
    sides = shapes()
    rates = np.exp(SCRIPT["log_rate"](TRUTH, sides))
    rates[::20] /= 3
    found = SCRIPT["fit"](sides, rates)
    assert np.exp(found[0]) == pytest.approx(np.exp(TRUTH[0]), rel=0.03)


def test_noise_shows_in_the_cross_validated_error() -> None:
    sides = shapes()
    noise = np.random.default_rng(1).normal(0, 0.1, len(sides))
    rates = np.exp(SCRIPT["log_rate"](TRUTH, sides) + noise)
    # the mean of |x| of a normal of sd 0.1 is 0.08
    assert SCRIPT["cross_validated"](sides, rates) == pytest.approx(8, abs=1.5)


def test_only_large_compute_bound_kernels_of_the_gpu_are_read(tmp_path: Path) -> None:
    table = tmp_path / "kernels.csv"
    table.write_text(
        "gpu,dtype,m,n,k,latency_ms,kernel\n"
        "H100-80GB-SXM,bf16,8192,8192,8192,1.5,torch\n"
        "H100-80GB-SXM,fp8,8192,8192,8192,1.5,torch\n"
        "H200,bf16,8192,8192,8192,1.5,torch\n"
        "H100-80GB-SXM,bf16,2048,2048,1024,0.02,torch\n"
        "H100-80GB-SXM,bf16,128,65536,8192,0.5,torch\n"
    )
    sides, rates = SCRIPT["read_kernels"](table, SCRIPT["TARGETS"]["h100-sxm5"])
    assert sides.tolist() == [[8192, 8192, 8192]]
    assert rates == pytest.approx([2 * 8192**3 / 1.5e-3])
