"""Cases to text: the plan file, launchers' scripts, plain torch code."""
