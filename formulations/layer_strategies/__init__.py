"""Galvatron-BMW, Section IV-A: a strategy for each layer of one pipeline stage, under its true peak memory."""
