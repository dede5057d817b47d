"""The command line: flags are parsed, functions called, answers printed."""
