"""The cost model `streams`: steps as frameworks run them, where communication overlaps with computation."""
