"""Config files with and without mistakes: found, missed, false alarms.

Usage: python benchmarks/check_configs.py [FOLDER OR FILE...]

The bad ones are those of ``tests/check/bad_*.py``, one mistake each. The good ones are those of the paths,
such as a checkout of https://github.com/huggingface/accelerate (``examples/``) or of
https://github.com/deepspeedai/DeepSpeedExamples: errors and warnings about them are false alarms, unless
somebody finds that the file is wrong.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from check.bad_configs import BAD
from check.bad_directives import DIRECTIVES
from check.bad_launches import ALONE, BESIDE, TOGETHER
from check.bad_megatron import MEGATRONS
from check.bad_plugins import PLUGINS
from check.bad_programs import PROGRAMS
from check.bad_pytorchjobs import BAD_PYTORCHJOBS
from check.bad_ranks import LIGHTNING, LIGHTNINGS, RANKS
from check.bad_signals import SIGNALS
from check.bad_torchtitan import BAD_TORCHTITAN
from check.bad_torchtitan_python import BAD_TORCHTITAN_PYTHON
from check.bad_trainjobs import BAD_TRAINJOBS

from parastrat.check import check_file, config_files
from parastrat.check.known import Given
from parastrat.finding import Severity

#: files with one mistake
MISTAKES = (
    *BAD,
    *PLUGINS,
    *ALONE,
    *PROGRAMS,
    *MEGATRONS,
    *RANKS,
    *LIGHTNING,
    *SIGNALS,
    *DIRECTIVES,
    *TOGETHER,
    *BAD_TORCHTITAN,
    *BAD_TORCHTITAN_PYTHON,
    *BAD_TRAINJOBS,
    *BAD_PYTORCHJOBS,
)


def missed() -> list[str]:
    """Return the mistakes whose rule says nothing."""
    lost = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (BESIDE | LIGHTNINGS).items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        for bad in MISTAKES:
            path = Path(folder) / f"config{bad.suffix}"
            path.write_text(bad.text, encoding="utf-8")
            if bad.code not in [found.code for found in check_file(path, Given()).findings]:
                lost.append(f"{bad.what} ({bad.code})")
    return lost


def main() -> None:
    """Print the counts, what was missed, and every alarm."""
    lost = missed()
    print(f"bad files: {len(MISTAKES) - len(lost)} of {len(MISTAKES)} found")
    for what in lost:
        print(f"  missed: {what}")
    files = [file for path in sys.argv[1:] for file in config_files(Path(path))]
    checked = [check_file(file, Given()) for file in files]
    alarms = [found for each in checked for found in each.findings if found.severity is not Severity.INFO]
    formats = [each.format.value for each in checked if each.format is not None]
    counts = ", ".join(f"{formats.count(name)} {name}" for name in sorted(set(formats)))
    print(f"good files: {len(files)} ({counts or 'none named'}), {len(alarms)} alarms")
    for found in alarms:
        print(f"  {found.path}:{found.line}: {found.severity} {found.code} {found.message}")


if __name__ == "__main__":
    main()
