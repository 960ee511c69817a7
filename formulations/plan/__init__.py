"""The plan: the contract between planners and execution, its request, units, strategies and validation."""
