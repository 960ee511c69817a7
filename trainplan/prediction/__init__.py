"""Predictions of plans in an engineer's units: step time, throughput, memory, and traces of the simulated step."""
