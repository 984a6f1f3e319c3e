"""Batch: one batch as a value, the states it goes through, and how clients and the disk see it.

    validating ──> in_progress ──> finalizing ──> completed
        │               ├──────────────┴────────> expired
        ├───────────────┴──> cancelling ────────> cancelled
        └───────────────────────────────────────> failed

How it ends is decided once, together with the ids of its results (`ending`); `ended` follows when those are
in place. So whoever takes over in between ends it in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ..errors import InvalidRequest
from ..text import quote
from .batch_lines import LineFault

Outcome = Literal["completed", "expired", "cancelled", "failed"]
Status = Literal["validating", "in_progress", "finalizing", "cancelling"] | Outcome

_OVER: Collection[str] = ("completed", "expired", "cancelled", "failed")
_DATED = (
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)
_WINDOW = re.compile(r"([1-9][0-9]{0,2})([hd])")
_SECONDS = {"h": 3600, "d": 86_400}
_MOST_PAIRS, _MOST_KEY, _MOST_VALUE = 16, 64, 512


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asks for."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Mapping[str, str] | None

    @property
    def seconds(self) -> int:
        """How long the batch may take."""
        found = _WINDOW.fullmatch(self.completion_window)
        assert found is not None, "orders are checked"
        return int(found[1]) * _SECONDS[found[2]]


@dataclass(frozen=True, slots=True)
class Counts:
    """Of lines; what is neither completed nor failed has not run."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """`times` are those at which a status was reached, in seconds since 1970, as all times here.
    The ids of results are set with `outcome`, and remain if there is such a file."""

    id: str
    tenant: str
    order: Order
    created_at: int
    status: Status = "validating"
    times: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[LineFault, ...] = ()
    counts: Counts = Counts()
    outcome: Outcome | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def expires_at(self) -> int:
        return self.created_at + self.order.seconds

    @property
    def is_over(self) -> bool:
        return self.status in _OVER

    def begun(self, total: int, now: int) -> Batch:
        """Its lines are in order. Nothing changes if it was cancelled meanwhile."""
        if self.status != "validating":
            return self
        return replace(self._reached("in_progress", now), counts=Counts(total))

    def cancelling(self, now: int) -> Batch:
        """Nothing changes if it is so already. Raises InvalidRequest if it is over, or nearly."""
        if self.status == "cancelling":
            return self
        if self.is_over or self.outcome is not None:
            raise InvalidRequest(f"a batch that is {self.status} cannot be cancelled")
        return self._reached("cancelling", now)

    def ending(
        self,
        outcome: Outcome,
        output_file_id: str,
        error_file_id: str,
        now: int,
        faults: tuple[LineFault, ...],
    ) -> Batch:
        """Nothing more will run. What a client has cancelled meanwhile ends as cancelled."""
        assert self.outcome is None, "a batch ends once"
        planned = replace(self, output_file_id=output_file_id, error_file_id=error_file_id)
        if self.status == "cancelling":
            return replace(planned, outcome="cancelled")
        planned = replace(planned, outcome=outcome, faults=faults)
        return planned if outcome == "failed" else planned._reached("finalizing", now)

    def ended(self, counts: Counts, has_output: bool, has_errors: bool, now: int) -> Batch:
        """Its results are in place."""
        assert self.outcome is not None, "how it ends is decided before"
        return replace(
            self._reached(self.outcome, now),
            counts=counts,
            output_file_id=self.output_file_id if has_output else None,
            error_file_id=self.error_file_id if has_errors else None,
        )

    def to_json(self) -> dict[str, object]:
        """OpenAI's batch object."""
        errors = {"object": "list", "data": [fault.to_json() for fault in self.faults]}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.order.endpoint,
            "errors": errors if self.faults else None,
            "input_file_id": self.order.input_file_id,
            "completion_window": self.order.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id if self.is_over else None,
            "error_file_id": self.error_file_id if self.is_over else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{status}_at": self.times.get(status) for status in _DATED},
            "request_counts": asdict(self.counts),
            "metadata": self.order.metadata,
        }

    def _reached(self, status: Status, now: int) -> Batch:
        return replace(self, status=status, times={**self.times, status: now})


# Any: what was written by `asdict`.
def restored_batch(fields: Mapping[str, Any]) -> Batch:
    """A batch from what `dataclasses.asdict` made of it."""
    return Batch(
        **{
            **fields,
            "order": Order(**fields["order"]),
            "faults": tuple(LineFault(**fault) for fault in fields["faults"]),
            "counts": Counts(**fields["counts"]),
        }
    )


def parse_order(body: Mapping[str, object], endpoints: Collection[str]) -> Order:
    """Raises InvalidRequest."""
    endpoint, window = _text(body, "endpoint"), _text(body, "completion_window")
    if endpoint not in endpoints:
        raise InvalidRequest(f"endpoint must be one of {', '.join(endpoints)}, got {quote(endpoint)}")
    if not _WINDOW.fullmatch(window):
        raise InvalidRequest(
            f"completion_window must be hours or days such as '24h' or '7d', got {quote(window)}"
        )
    return Order(_text(body, "input_file_id"), endpoint, window, _metadata(body.get("metadata")))


def _text(body: Mapping[str, object], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be text, got {quote(value)}")
    return value


def _metadata(value: object) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MOST_PAIRS:
        raise InvalidRequest(f"metadata must be an object of up to {_MOST_PAIRS} pairs, got {quote(value)}")
    for key, text in value.items():
        if len(key) > _MOST_KEY:
            raise InvalidRequest(f"keys of metadata may have {_MOST_KEY} characters, got {quote(key)}")
        if not isinstance(text, str) or len(text) > _MOST_VALUE:
            raise InvalidRequest(
                f"values of metadata must be text of up to {_MOST_VALUE} characters, got {quote(text)}"
            )
    return value
