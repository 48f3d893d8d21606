"""Settings for all tests: hypothesis draws the same examples in every run, and a busy machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("psph", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("psph")
