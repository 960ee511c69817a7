"""Peak memory of every rank: buffers are allocated and freed in the order of the program's instructions."""
