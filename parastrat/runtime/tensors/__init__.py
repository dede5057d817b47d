"""The tensors of modules, batches and outputs: what holds them, and what of them a rank has."""
