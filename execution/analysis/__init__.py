"""Readers of programs that start no process: checks, meanings, memory, time."""
