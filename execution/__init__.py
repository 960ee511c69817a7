"""Plans run: a plan becomes one program per rank; programs are checked, walked for memory, and executed."""
