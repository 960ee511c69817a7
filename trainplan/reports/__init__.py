"""A plan's report: one HTML page that needs no other file, made from the plan and the simulation of its programs."""
