"""Memory switches for each layer (H3T)."""
