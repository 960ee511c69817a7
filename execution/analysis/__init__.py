"""Programs, read without starting a process: verification, peak memory, and the time of a step."""
