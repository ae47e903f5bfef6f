"""For every test: property tests are bounded by their number of examples, not by a clock that neighbours share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tie",
    deadline=None,
    max_examples=1000 if os.environ.get("TIE_SOAK") == "1" else 100,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile("tie")
