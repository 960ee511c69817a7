"""The prediction of a plan: it is compiled, verified, and its programs are simulated for time and memory."""
