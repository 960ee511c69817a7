"""joint: schedule, micro-batches, stages and the option of every unit decided together, for the least simulated step."""
