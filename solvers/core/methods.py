"""The (empty) list of methods for a problem that names no package of solvers: it has brute force and those of plug-ins only."""

from trainplan.solvers.core.method_registry import Methods

METHODS = Methods()
