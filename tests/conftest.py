"""Array shapes and types of the whole library are checked while its tests run."""

from __future__ import annotations

# Imported before the hook, which would compile every module imported through attsvm afresh, without its cache.
import jax  # noqa: F401
import joblib  # noqa: F401
import pytest
import scipy.linalg
import scipy.optimize  # noqa: F401
import threadpoolctl  # noqa: F401
from hypothesis import HealthCheck, settings
from jaxtyping import config, install_import_hook

install_import_hook("attsvm", "beartype.beartype")

settings.register_profile(
    "attsvm", max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("attsvm")


@pytest.fixture
def untyped():
    """For tests that pass wrong types on purpose: users have no type checker in between."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
