"""What holds for every test."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ftlib",
    deadline=None,  # speed is measured in benchmarks/: a busy machine must not fail what is right
    derandomize=bool(os.environ.get("CI")),  # one commit, one verdict; everybody else's runs look further
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ftlib")
