"""The cost model of work in sequence: time and memory of sub-layers, which problems add up and the simulation of programs
charges."""
