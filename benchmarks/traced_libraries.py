"""Models of public libraries, traced beside a step that runs: timm, torchvision, diffusers and others.

Usage: python benchmarks/traced_libraries.py [--library NAME] [--state FILE] [--minutes N] [--only TEXT]
                                             [--mixed]

Without --library all of libraries/ that are installed are taken; none is a dependency: ``pip install timm
torchvision diffusers ...``. What is taken of each its file says: small, in train mode, without what draws
at random. Results are kept in FILE (traced_libraries.jsonl), and what is in it is not run again.
traced_catalogue.py says what is counted, and how many samples a batch has.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from libraries import LIBRARIES, installed, members, names
from libraries.member import Member
from traced_catalogue import Call, Try, flags, run

from parastrat.runtime.caches import without_caches


def tries(name: str) -> Iterator[Try]:
    """Yield the ways to build a model."""
    for member in members(name):
        call = Call(make=functools.partial(_made, member))
        yield Try(build=functools.partial(_built, member), calls=functools.partial(_only, call))


def _only(call: Call, _module: Any) -> list[Call]:
    return [call]


def _made(member: Member, samples: int, _length: int | None) -> Any:
    return member.inputs(samples)


def _built(member: Member) -> Any:
    module = member.build()
    without_caches(module)  # as auto_parallelize does
    return module


def main() -> None:
    """Run what is not known yet, and print what all of it comes to."""
    parser = flags(__doc__ or "", "traced_libraries.jsonl")
    parser.add_argument("--library", choices=list(LIBRARIES))
    given = parser.parse_args()
    taken = [given.library] if given.library else installed()
    if not taken:
        raise SystemExit(f"none of {', '.join(LIBRARIES)} is installed: pip install timm, or another")
    run([name for library in taken for name in names(library)], tries, given)


if __name__ == "__main__":
    main()
