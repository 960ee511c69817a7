"""Models as chains of sub-layers, by family."""
