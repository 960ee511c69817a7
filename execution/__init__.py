"""From plan to run: a plan becomes one program per rank; programs are checked, simulated for memory and time, and executed."""
