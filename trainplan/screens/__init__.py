"""The command line's answers as rows of text that fit on one screen: plans, runs that were read, and least memory."""
