"""Shared by all tests: float32 products, no deadline for the first (compiling) example, one tiny target."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from hypothesis import HealthCheck, settings

from tests.tiny import TARGET, target_params

jax.config.update("jax_default_matmul_precision", "float32")
settings.register_profile("sdjax", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sdjax")


@pytest.fixture(scope="session")
def target():
    return TARGET


@pytest.fixture(scope="session")
def params():
    return target_params()


def pytest_collection_modifyitems(items):
    """Tests that share compiled programs run in one process (--dist loadgroup): those of a drafter, else those of a file."""
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        cls = params.get("cls", type(params["drafter"]) if params.get("drafter") else None)
        item.add_marker(pytest.mark.xdist_group(cls.__name__ if cls else item.path.name))


def mappings() -> int:
    """The memory mappings of this process, of which Linux allows 65,530; beyond them XLA dies while it compiles."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


@pytest.fixture(autouse=True, scope="module")
def few_mappings():
    """Drops compiled programs behind a file when they hold many mappings."""
    yield
    if mappings() > 30_000:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def few_mappings_within_a_file():
    """As `few_mappings`, later: what a file's tests share is compiled again."""
    yield
    if mappings() > 45_000:
        jax.clear_caches()
