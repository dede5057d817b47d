"""Config files to findings, with the advisor's rules. Imports neither torch nor the user's code."""

from __future__ import annotations

from parastrat.check.checked import Checked
from parastrat.check.files import check_file
from parastrat.check.known import Given, stated_model
from parastrat.check.recognition import KNOWN, config_files
from parastrat.check.selection import all_ignored, with_settings
from parastrat.check.settings import Ignore, Settings, settings_of
from parastrat.check.settings_form import code_problems

__all__ = [
    "KNOWN",
    "Checked",
    "Given",
    "Ignore",
    "Settings",
    "all_ignored",
    "check_file",
    "code_problems",
    "config_files",
    "settings_of",
    "stated_model",
    "with_settings",
]
