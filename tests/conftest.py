"""What holds for all tests: how patient Hypothesis is."""

from hypothesis import HealthCheck, settings

# Files of tests run side by side, on machines that may have other work, too: how long an example takes says nothing.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
