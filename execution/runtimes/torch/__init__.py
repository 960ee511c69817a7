"""torch alone: a script that trains a plan with torch and transformers."""
