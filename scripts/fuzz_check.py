# ruff: noqa: INP001, T201
"""Config files and settings damaged at random: read, found wrong or refused, never a traceback, never slow.

Usage: python scripts/fuzz_check.py [INPUTS] [SEED]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from check.bad_configs import GOOD  # noqa: E402
from check.bad_launches import ACCELERATE, BESIDE, BY_HAND, DEEPSPEED, WITH_FILE  # noqa: E402
from check.bad_pytorchjobs import GOOD_PYTORCHJOBS  # noqa: E402
from check.bad_ranks import MPI, SHELL  # noqa: E402
from check.bad_torchtitan import EXPERTS, TORCHTITAN  # noqa: E402
from check.bad_torchtitan_python import STAGES as STAGED  # noqa: E402
from check.bad_torchtitan_python import WHOLE as IN_PYTHON  # noqa: E402
from check.bad_trainjobs import GOOD_TRAINJOBS  # noqa: E402
from check.test_megatron import GPT  # noqa: E402

from parastrat.check import check_file  # noqa: E402
from parastrat.check.known import Given  # noqa: E402
from parastrat.check.settings import PROJECT, read_settings  # noqa: E402
from parastrat.errors import ParastratError  # noqa: E402
from parastrat.profiles import load_hardware  # noqa: E402

#: seconds from which a file counts as one that hangs
SLOW_S = 2.0
#: the checker's own settings, as a project states them
SETTINGS = """\
[project]
name = "mine"

[tool.parastrat.check]
select = ["PS2", "PS6", "PS501"]
ignore = { PS320 = "measured: 3 % slower" }
on = "dgx-h100:8"
model = "./config.json"

[tool.parastrat.check.paths."configs/v100/*"]
on = "./node.toml:4"
ignore = { PS4xx = "the old cluster" }
"""
#: files of whole jobs, which are checked for given machines and estimated
WHOLE = ("train.toml", "job.sbatch", "configs.py")
PLAN = ROOT / "tests" / "emit" / "golden" / "plan.toml"
#: what breaks readers: numbers too large, other types, syntax, anchors, other scripts
PIECES = (
    "0", "-1", "1e999", "nan", "9" * 40, "true", "null", "~", "[]", "{}", '"', "'", "[" * 60, "{" * 60, ":",
    "- ", "\t", "\n", "\r\n", "&a", "*a", "!!python/object:os.system", "<<: *a", "\x00", "\ufeff", "é",
    "#", "//", "|", ">", "%", "@", "`", "? ", "---", "...", "auto", "no", "0x1F", "1_000", "2026-01-01",
)  # fmt: skip


def seeds() -> list[tuple[str, str]]:
    """Return good files as name and text."""
    texts = [
        ("config.sbatch" if name == "SCRIPT" else "config.yaml", good)
        if isinstance(good, str)
        else ("config.json", json.dumps(good, indent=2))
        for name, good in GOOD.items()
    ]
    # what lies beside scripts is damaged too, and they are read with what it was last
    texts += [("launch.sh", text) for text in (ACCELERATE, WITH_FILE, BY_HAND, DEEPSPEED, SHELL, MPI)]
    texts += BESIDE.items()
    texts += [*((WHOLE[0], text) for text in (TORCHTITAN, EXPERTS)), (WHOLE[1], GPT)]
    texts += [(WHOLE[2], text) for text in (IN_PYTHON, STAGED)]
    texts += [("job.yaml", text) for text in (*GOOD_TRAINJOBS[:3], *GOOD_PYTORCHJOBS[:3])]
    return [*texts, ("plan.toml", PLAN.read_text(encoding="utf-8")), (PROJECT, SETTINGS)]


def damaged(text: str, draw: random.Random) -> bytes:
    """Return a text with one to four faults."""
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice((0, 1, 3, 20, 200)))
        kind = draw.randrange(4)
        if kind == 0:
            text = text[:start] + text[end:]
        elif kind == 1:
            text = text[:start] + draw.choice(PIECES) + text[end:]
        elif kind == 2:
            text = text[:end] + text[start:]
        else:
            lines = text.splitlines(keepends=True)
            draw.shuffle(lines)
            text = "".join(lines) if draw.random() < 0.2 else text[: max(start, 1)]
    data = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.05:
        place = draw.randrange(len(data) + 1)
        data = data[:place] + bytes([draw.randrange(128, 256)]) + data[place:]
    return data


def outcome(path: Path) -> str:
    """Return what came of one file; anything but a ParastratError is the fault that is looked for."""
    try:
        if path.name == PROJECT:
            read_settings(path)
            return "read"
        hardware = load_hardware("dgx-a100:16") if path.name in WHOLE else None
        checked = check_file(path, Given(hardware=hardware))
    except ParastratError:
        return "refused"
    return "found wrong" if checked.findings else "read"


def main() -> None:
    """Print the counts, the slowest, and the texts that made a fault."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    draw = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)  # noqa: S311 - a draw that can be repeated
    outcomes, slowest, faults = Counter[str](), 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(count):
            name, text = draw.choice(seeds())
            path = Path(folder) / name
            path.write_bytes(damaged(text, draw))
            start = time.perf_counter()
            try:
                outcomes[outcome(path)] += 1
            except Exception as error:  # noqa: BLE001 - every kind is what is looked for
                faults += 1
                print(f"{type(error).__name__}: {error}\n{path.read_bytes()[:400]!r}")
            seconds = time.perf_counter() - start
            slowest = max(slowest, seconds)
            faults += seconds > SLOW_S
    counted = ", ".join(f"{number:,} {what}" for what, number in outcomes.most_common())
    print(f"{count:,} damaged files: {counted}; {faults} faults; slowest {slowest:.2f} s")


if __name__ == "__main__":
    main()
