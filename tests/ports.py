"""Ports for the processes of a test to meet at."""

from __future__ import annotations

import contextlib
import random
import socket

#: below the ports that Linux gives to connections, of which every process of another test opens dozens: one
#: that the kernel names as free may be taken before a test's rank 0 listens
_PORTS = range(20_000, 30_000)


def free_port() -> int:
    """Return a port that nobody listens on, and that no connection is given meanwhile.

    Raises:
        OSError: if a hundred are in use.
    """
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("100 ports are in use")
