"""The cost model `streams`: steps as frameworks run them, with lanes of computation and communication beside each other."""
