"""From a plan to the programs of its ranks."""
