"""Shared by all packages: errors for users, reading and writing of files, units of memory and time, worker processes."""
