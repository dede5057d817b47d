"""What flags fix of a plan, as constraints of its search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.search import Constraints

if TYPE_CHECKING:
    from parastrat.cli.flags import FixedFlags


def constraints_of(fixed: FixedFlags, strategy: str | None = None) -> Constraints:
    """Return what flags fix.

    Args:
        fixed: the flags.
        strategy: by its name in the search, which knows less of them than the flag.
    """
    return Constraints(
        pp=fixed.pp,
        dp_replicate=fixed.dp_replicate,
        dp_shard=fixed.dp_shard,
        cp=fixed.cp,
        tp=fixed.tp,
        ep=fixed.ep,
        micro_batch_size=fixed.micro_batch,
        recompute=fixed.recompute,
        pp_schedule=fixed.schedule,
        virtual_stages=fixed.virtual_stages,
        offload=fixed.offload,
        strategy=strategy,
    )
