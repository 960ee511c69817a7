"""An interpreter of Python configurations that runs none of their code."""
