"""torch without a framework: export of a plan to a script that trains with torch and transformers only."""
