"""A plan's report: one HTML page that needs no other file, from the plan and the walks over its programs."""
