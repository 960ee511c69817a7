"""What all methods share: the search, its result, the registry, brute force."""
