"""PS566, PS567 and PS570: ranks that MPI's launcher starts, their hosts, and what they are handed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, ConfigFormat, whole_number
from parastrat.finding import Hit, Severity
from parastrat.rules.rank_facts import ranks_of
from parastrat.rules.rule import file_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_MPIRUN = "https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man1/mpirun.1.html"
_FORMAT = ConfigFormat.SCRIPT

#: variables that MPI's launcher or the other hosts' own shells set
_OTHERS_OWN = ("OMPI_", "PMIX_", "PRTE_", "HOSTNAME", "HOME", "PATH", "PWD", "USER")


@file_rule("PS566", Severity.ERROR, _FORMAT, source=_MPIRUN)
def hosts_have_slots_for_ranks(file: ConfigFile) -> Iterator[Hit]:
    """Open MPI starts no more ranks than its hosts have slots.

    A host behind --host has one slot unless a number stands behind a colon. With more ranks mpirun stops:
    "There are not enough slots available".
    """
    hosts, ranks = file.get("ranks.host"), ranks_of(file)
    if file.get("ranks.is") != "open-mpi" or file.get("ranks.slots") or file.get("sbatch") is not None:
        return
    if not isinstance(hosts, str) or "$" in hosts or ranks is None:
        return
    several = [host.partition(":") for host in hosts.split(",") if host]
    slots = [whole_number(number) if colon else 1 for _, colon, number in several]
    if None in slots or sum(filter(None, slots)) >= ranks:
        return
    each = -(-ranks // len(several))
    yield Hit(
        message=f"{ranks} ranks for {counted(sum(filter(None, slots)), 'slot')} of --host {hosts}",
        fix="write --host " + ",".join(f"{name}:{each}" for name, *_ in several),
        key="ranks",
    )


@file_rule("PS570", Severity.ERROR, _FORMAT, source=_MPIRUN)
def some_ranks_are_started(file: ConfigFile) -> Iterator[Hit]:
    """MPI's launcher is told of a whole number of ranks, 1 or more.

    It stops at anything else, or takes an option that follows in the number's place for it.
    """
    stated = file.get("ranks.n")
    if file.get("ranks.by") != "mpirun" or not isinstance(stated, str) or FILLED_IN.search(stated):
        return
    if not whole_number(stated):
        yield Hit(
            message=f"{stated or 'nothing'} stands for the number of ranks",
            fix="write how many processes are to run, on all hosts together: -n 8",
            key="ranks",
        )


@file_rule("PS567", Severity.WARNING, _FORMAT, source=_MPIRUN)
def other_hosts_get_variables(file: ConfigFile) -> Iterator[Hit]:
    """Open MPI hands to ranks on other hosts the variables that -x names.

    Beside those and OMPI_* what a script exports stays on its host, where no batch system starts the
    others: settings of NCCL hold for some of the ranks then, and MASTER_ADDR is unknown to the rest.
    """
    hosts = str(file.get("ranks.host") or "")
    elsewhere = "," in hosts or file.get("ranks.hostfile") is not None
    if file.get("ranks.is") != "open-mpi" or file.get("ranks.open") or file.get("sbatch") is not None:
        return
    handed = str(file.get("ranks.handed") or "").split()
    exported = str(file.get("ranks.exported") or "").split()
    missing = [name for name in exported if name not in handed and not name.startswith(_OTHERS_OWN)]
    if elsewhere and missing:
        yield Hit(
            message=f"mpirun leaves {', '.join(missing)} on this host",
            fix="add " + " ".join(f"-x {name}" for name in missing),
            key="ranks",
        )
