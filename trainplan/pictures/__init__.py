"""Pictures of profiles, plans, steps and results."""
