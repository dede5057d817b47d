"""Jobs of Kubeflow, whichever operator they are for, as they are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.check import Checked, check_file
from parastrat.check.known import Given

if TYPE_CHECKING:
    from pathlib import Path

    from check.bad_configs import Bad


def checked(folder: Path, text: str) -> Checked:
    path = folder / "job.yaml"
    path.write_text(text)
    return check_file(path, Given())


def find_in_its_document(folder: Path, bad: Bad) -> None:
    """See a mistake found, behind the first document, which is not the job's."""
    found = [each for each in checked(folder, bad.text).findings if each.code == bad.code]
    assert found
    begins = bad.text.splitlines().index("---") + 1
    assert all(each.line is None or each.line > begins for each in found)
