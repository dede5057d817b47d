"""What a machine was measured to do, and the hardware figures that follow. Never imports torch."""

from parastrat.calibration.fitting import Calibration, Fit, calibrated
from parastrat.calibration.timings import Machinery, Operation, Timing, Wanted, wanted, wanted_alone

__all__ = [
    "Calibration",
    "Fit",
    "Machinery",
    "Operation",
    "Timing",
    "Wanted",
    "calibrated",
    "wanted",
    "wanted_alone",
]
