"""Work: the one model of what sub-layers cost. Problems add its pieces up; the time walk charges instructions with them."""
