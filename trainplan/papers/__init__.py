"""Evidence: results of the papers' own code and comparisons, computed anew, to compare trainplan's with."""

# By problem: the function that reads a file of a paper's own code, which `build` takes instead of a profile, as an instance of
# the problem; it gives None for any other file.
FILES = {"memory-switches": "trainplan.papers.h3t_file:instance_of"}
