"""Reader of the arguments of transformers' Trainer, from files and from logs."""
