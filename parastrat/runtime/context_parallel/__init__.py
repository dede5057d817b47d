"""Context parallelism: one sequence's positions over several devices."""
