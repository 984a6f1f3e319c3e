"""What a test run needs before the first import of torch and triton, and the profiles of property tests."""

from __future__ import annotations

import glob
import os

# Triton reads this when it is first imported: without a GPU its kernels run in the interpreter.
if not glob.glob("/dev/nvidia[0-9]*"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# oneDNN, which the transformers reference computes with, reads these when torch is first imported, and would
# keep a compiled kernel for every number of rows that any test has run.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
os.environ.setdefault("LRU_CACHE_CAPACITY", "32")

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_ROOT = Path(__file__).resolve().parent.parent


class _RootIsNoTestPackage:
    """The root's __init__.py is the package, not a package of tests.

    pytest would import it under the name of the checkout's folder, and a clone called `torch` would
    then stand in the place of the real torch.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return pytest.Dir.from_parent(parent, path=path) if path == _ROOT else None


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_RootIsNoTestPackage())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The run that gates a change has a quarter of an hour for everything; `make test` looks at all of it."""
    if _PROFILE == "ci":
        for item in items:
            if item.get_closest_marker("thorough") is not None:
                item.add_marker(pytest.mark.skip(reason="HYPOTHESIS_PROFILE=ci leaves out what is thorough"))


_PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")


def _register_profiles() -> None:
    # Cores are shared with other work: how long one example takes says nothing.
    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
    settings.register_profile("dev", max_examples=50, **patient)
    settings.register_profile("ci", max_examples=40, derandomize=True, **patient)
    settings.register_profile("nightly", max_examples=2000, **patient)
    settings.load_profile(_PROFILE)


_register_profiles()
