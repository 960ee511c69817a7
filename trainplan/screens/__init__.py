"""Answers on one screen: of a plan, of a run that was read, of whether something fits, of what is near a request."""
