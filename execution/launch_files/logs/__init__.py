"""Reading logs of training runs: the configurations that a log prints, and the steps that it measured."""
