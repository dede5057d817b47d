"""Data parallelism: one module copied or sharded over several devices, each with samples of its own."""
