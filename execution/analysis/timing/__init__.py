"""The time of a step: a discrete-event simulation of the instructions of all ranks, and the costs that it charges."""
