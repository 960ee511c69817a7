"""The joint problem where stages may begin at any unit: columns of pipelines, LP bounds, and a search over paths."""
