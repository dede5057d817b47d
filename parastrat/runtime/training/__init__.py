"""What serves a training loop around a wrapped model: steps, batches, evaluation, checkpoints."""
