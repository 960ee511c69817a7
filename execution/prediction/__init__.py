"""The prediction of a plan: it is compiled, verified, and its programs are timed and measured for memory."""
