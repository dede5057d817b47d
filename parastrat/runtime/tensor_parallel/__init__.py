"""Tensor parallelism: one layer's weights and work over several devices."""
