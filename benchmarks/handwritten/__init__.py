"""The plans that ``overhead.py`` compares, as one would write them by hand in plain torch."""
