"""A step of a plan or of a script without the cluster: fake ranks, fake tensors, true shapes."""

from parastrat.runtime.dry_run.apart import preload
from parastrat.runtime.dry_run.command import Command, command_of
from parastrat.runtime.dry_run.ground import real_device
from parastrat.runtime.dry_run.ranks import ranks_to_run, run_kinds, run_on_device, run_on_fakes
from parastrat.runtime.dry_run.script import run_script

__all__ = [
    "Command",
    "command_of",
    "preload",
    "ranks_to_run",
    "real_device",
    "run_kinds",
    "run_on_device",
    "run_on_fakes",
    "run_script",
]
