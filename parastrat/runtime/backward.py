"""Whether a backward is running."""

from __future__ import annotations

import torch


def in_backward() -> bool:
    """Return whether a backward is running: forwards that are called in it are computed again."""
    running: int = torch._C._current_graph_task_id()  # noqa: SLF001  (torch says it nowhere else)
    return running != -1
