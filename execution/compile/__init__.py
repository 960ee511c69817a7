"""From a plan to programs, one per rank."""
