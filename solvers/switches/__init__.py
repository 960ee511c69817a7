"""Memory switches: exact search, H3T's planners, and steps whose segments are not synchronised."""
