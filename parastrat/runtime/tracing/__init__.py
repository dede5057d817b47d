"""Any module run once on fake tensors, and read as the chain of blocks that estimates know."""
