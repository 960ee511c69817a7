"""Lines of training logs: configurations that a log prints, and the steps that it measured."""
