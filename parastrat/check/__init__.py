"""Config files to findings, with the advisor's rules. Imports neither torch nor the user's code."""

from __future__ import annotations

from parastrat.check.files import Checked, check_file
from parastrat.check.recognition import config_files

__all__ = ["Checked", "check_file", "config_files"]
