"""The joint problem where the units of every stage are fixed: a search over options with LP bounds."""
