"""Whether any choice of the joint problem fits in memory: minimum memory of stages, and greedy filling."""
