"""The methods of a problem that names no package of solvers: none but brute force and those of other packages."""

from trainplan.solvers.core.method_registry import Methods

METHODS = Methods()
