"""A plan's own wrapping and one step of it without the cluster: fake ranks, fake tensors, true shapes."""

from parastrat.runtime.dry_run.ranks import preload, ranks_to_run, run_on_fakes

__all__ = ["preload", "ranks_to_run", "run_on_fakes"]
