"""Tests of memory estimates. A package, before which benchmarks/memory.py does not come."""
