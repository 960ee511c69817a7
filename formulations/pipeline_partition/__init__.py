"""pipeline-partition: cut a chain of sub-layers into pipeline stages for the least simulated 1F1B iteration (AutoPipe)."""
