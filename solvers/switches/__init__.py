"""Memory switches: exact search and H3T's planners."""
