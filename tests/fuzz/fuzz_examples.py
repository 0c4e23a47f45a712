"""How many examples a fuzz test tries: a share of those that the Hypothesis profile asks for."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def share(percent: int) -> settings:
    """So many of each hundred examples that the profile asks for."""
    return settings(
        max_examples=max(1, settings().max_examples * percent // 100), deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )  # fmt: skip
