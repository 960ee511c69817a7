"""The parts that all solution methods share: the search, its result, the registry of methods, brute force."""
