"""Fixtures of the kernel tests."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request: pytest.FixtureRequest) -> int:
    """Runs a test with a team of one and of three: work is shared out anew each time."""
    count: int = request.param
    return count
