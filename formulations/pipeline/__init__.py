"""pipeline: stages, micro-batches and strategies of a whole training step, decided together."""
