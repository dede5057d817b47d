"""What a launcher's command line starts: which script, with which arguments, on how many ranks."""

from __future__ import annotations

from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.run import get_args_parser

from parastrat.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMS = (
    "write it as you launch it: verify -- torchrun --nproc-per-node 8 train.py ..., "
    "verify -- python train.py ..., or verify -- parastrat run plan.toml train.py ..."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A script and the job that it is a rank of."""

    #: a file, or with ``as_module`` a module's name
    script: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False
    nodes: int = 1
    ranks_per_node: int = 1
    #: what ``auto_parallelize`` finds in its environment
    plan: str | None = None

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def environment(self, rank: int) -> dict[str, str]:
        """Return what torchrun tells a rank.

        Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
        """
        local, node = rank % self.ranks_per_node, rank // self.ranks_per_node
        told = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "GROUP_RANK": node,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.ranks_per_node,
            "GROUP_WORLD_SIZE": self.nodes,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 29500,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        own = {} if self.plan is None else {"PARASTRAT_PLAN": self.plan}
        return {name: str(value) for name, value in told.items()} | own


def command_of(words: Sequence[str]) -> Command:
    """Return what a command line starts.

    Args:
        words: of torchrun, ``python -m torch.distributed.run``, ``python`` or ``parastrat run``.

    Raises:
        UsageError: another launcher, a script that is not there, or a number of ranks that only the
            machine of the job knows.
    """
    launcher, rest = Path(words[0]).name if words else "", list(words[1:])
    if launcher.startswith("python"):
        if rest[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
            return _of_torchrun(rest[2:])
        return _of_python(rest)
    if launcher == "torchrun":
        return _of_torchrun(rest)
    if launcher == "parastrat" and rest[:1] == ["run"]:
        return _of_run(rest[1:])
    raise UsageError(f"verify does not know how {launcher or 'nothing'} starts a script", hint=_FORMS)


def _of_python(words: list[str]) -> Command:
    if words[:1] == ["-m"] and len(words) > 1:
        return Command(script=words[1], arguments=tuple(words[2:]), as_module=True)
    if not words or words[0].startswith("-"):
        raise UsageError("python is given no script", hint=_FORMS)
    return _there(Command(script=words[0], arguments=tuple(words[1:])))


def _of_torchrun(words: list[str]) -> Command:
    # torchrun says of this short form, which Python before 3.12 finds in two spellings of one option
    words = [
        word.replace("--nproc", "--nproc-per-node", 1) if word.partition("=")[0] == "--nproc" else word
        for word in words
    ]
    with redirect_stderr(StringIO()) as said:
        try:
            found: Any = get_args_parser().parse_args(words)
        except SystemExit as error:
            lines = said.getvalue().strip().splitlines()
            why = lines[-1].rpartition("error: ")[2] if lines else "it was asked for help"
            raise UsageError(f"torchrun would refuse this command line: {why}", hint=_FORMS) from error
    if not found.nproc_per_node.isdigit():
        raise UsageError(
            f"--nproc-per-node {found.nproc_per_node} depends on the machine",
            hint="give the number of ranks",
        )
    command = Command(
        script=found.training_script,
        arguments=tuple(found.training_script_args),
        as_module=found.module,
        nodes=int(found.nnodes.rpartition(":")[2]),
        ranks_per_node=int(found.nproc_per_node),
    )
    return command if command.as_module else _there(command)


def _of_run(words: list[str]) -> Command:
    if len(words) < 2 or words[0].startswith("-"):
        raise UsageError("parastrat run is given no plan and script", hint=_FORMS)
    from parastrat.parse import read_plan  # noqa: PLC0415  (pydantic loads only for files)

    path = Path(words[0])
    parsed = read_plan(path)
    if parsed.plan is None:
        raise UsageError(f"{path} has no plan", hint="add the table [plan]")
    world = parsed.plan.mesh.world_size
    each = parsed.launch.ranks_per_node if parsed.launch is not None else world
    return _there(
        Command(
            script=words[1],
            arguments=tuple(words[2:]),
            nodes=world // each,
            ranks_per_node=each,
            plan=str(path.resolve()),
        )
    )


def _there(command: Command) -> Command:
    if not Path(command.script).is_file():
        raise UsageError(f"there is no script {command.script}", hint="name the file that trains the model")
    return command
