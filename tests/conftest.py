"""Files of tests run side by side, one on each core; with more threads than one they would only wait."""

from __future__ import annotations

import os

# read when torch is imported, here and in every process that a test starts
os.environ.setdefault("OMP_NUM_THREADS", "1")
