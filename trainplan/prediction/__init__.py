"""What a plan's programs predict, in an engineer's units: step, throughput, memory, traces."""
