"""The training runtimes that plans are exported to and runs are imported from: one folder per runtime."""
