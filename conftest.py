"""No test asserts a wall-clock time: not even that of an example, by Hypothesis' default of 200 ms.

CI judges the change and not the luck of the draw (`--hypothesis-profile=ci`); by hand every run draws new examples.
"""

from hypothesis import settings

settings.register_profile("hindcast", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("hindcast")
