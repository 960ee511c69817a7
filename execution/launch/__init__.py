"""Plans are run: which executor takes a plan, whether its memory is there, the processes, and the report of a run."""
