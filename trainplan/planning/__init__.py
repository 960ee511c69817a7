"""From a request to a plan: presets, the planner, its result, and searches over requests."""
