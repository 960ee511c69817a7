"""The runtimes that plans are exported to and runs are read from, one folder for each."""
