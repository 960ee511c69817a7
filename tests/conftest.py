"""Property tests have no deadline: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("trainplan", deadline=None)
settings.load_profile("trainplan")
