"""Cost models: times and bytes of sub-layers and messages, one thing after the other, or overlapped as frameworks run them."""
