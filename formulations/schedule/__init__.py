"""One step of a pipeline: schedules, when each pass runs, and what a stage holds."""
