"""Ports for the processes of a test to meet at."""

from __future__ import annotations

import contextlib
import random
import socket

from parastrat.launch import FIRST_PORT, PORTS


def free_port() -> int:
    """Return a port that nobody listens on, and that no connection is given meanwhile.

    Processes of other tests open dozens of those: a port that the kernel names as free may be taken before
    a test's rank 0 listens.

    Raises:
        OSError: if a hundred are in use.
    """
    for port in random.sample(range(FIRST_PORT, FIRST_PORT + PORTS), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("100 ports are in use")
