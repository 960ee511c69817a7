"""The joint problem, solved with proof: bounds on all spans, a master over suffixes, exact stages where a path uses them."""
