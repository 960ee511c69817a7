"""A problem of another package: into how many micro-batches to cut a step."""
