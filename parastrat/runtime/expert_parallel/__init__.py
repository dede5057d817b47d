"""Expert parallelism: one layer's experts over several devices, to which tokens travel."""
