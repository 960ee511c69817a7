"""Models as chains of sub-layers, built by model family."""
