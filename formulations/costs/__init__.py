"""What sub-layers and messages cost: one thing after the other, or overlapped as frameworks run them."""
