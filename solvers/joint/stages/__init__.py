"""One stage of the joint problem: tables of its options, label setting over its units, and bounds of spans."""
