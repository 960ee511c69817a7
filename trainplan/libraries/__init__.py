"""The library: instances of every problem, best known solutions, proven bounds, and evidence that others can check."""
