"""DeepSpeed's file of hosts: a name and its slots on each line."""

from __future__ import annotations

import re

#: as ``deepspeed`` looks for it in a line: what stands behind the number is passed over
_ENTRY = re.compile(r"(\S+)\s+slots=(\d{1,9})")


def read_hosts(text: str) -> tuple[dict[str, int], dict[str, str]]:
    """Return hosts with their slots, and what is wrong with other lines, by the lines' numbers.

    Blank lines and remarks are none.
    """
    hosts: dict[str, int] = {}
    wrong: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        entry = _ENTRY.match(bare)
        if not bare or bare.startswith("#"):
            continue
        if entry is None:
            wrong[str(number)] = f"{bare[:40]} is not HOST slots=NUMBER"
        elif entry[1] in hosts:
            wrong[str(number)] = f"{entry[1]} stands twice"
        else:
            hosts[entry[1]] = int(entry[2])
    if not hosts and not wrong:
        wrong["1"] = "there is no host"
    return hosts, wrong
