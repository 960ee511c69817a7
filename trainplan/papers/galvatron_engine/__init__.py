"""Galvatron's published engine (Hetu-Galvatron v2.4.0): its profile files, cost model `code`, search, and optimum."""
