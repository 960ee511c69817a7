"""The cost model of work in sequence: time and memory of sub-layers. Problems add it up; the simulation charges it."""
