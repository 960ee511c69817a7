"""One step of a pipeline: the order of passes, when each pass runs, and what a stage holds."""
