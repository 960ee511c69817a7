"""Studies: many planning problems, solved by many methods in processes of their own, with one row of results for each cell."""
