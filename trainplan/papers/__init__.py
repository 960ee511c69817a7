"""Evidence: what the papers' own code and comparisons compute, kept to hold trainplan's against it."""

# Files of the papers' own code that `build` takes in a profile's place, by problem: functions that give an instance of the
# file, or None for any other file.
FILES = {"memory-switches": "trainplan.papers.h3t_file:instance_of"}
