"""The steps of the check, in the order in which they are worth something: what is wrong need not be timed."""

from __future__ import annotations

from . import numerics, overflow, throughput, timings, tokens
from .report import Step

STEPS = (
    Step("numerics", 110, numerics.rows),
    Step("overflow", 40, overflow.rows),
    Step("tokens", 70, tokens.rows),
    Step("timings", 120, timings.rows),
    Step("throughput", 130, throughput.rows),
)
"""At most 470 seconds together."""
