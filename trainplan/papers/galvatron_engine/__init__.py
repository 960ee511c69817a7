"""Galvatron's published search engine (Hetu-Galvatron v2.4.0): its profile files, its cost model (called `code`), its search,
and the optimum that its plans can be compared with."""
