"""stage-assignment: which consecutive layers form each stage of a pipeline."""
