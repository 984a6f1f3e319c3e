"""BatchStore: batches on disk, each a folder with its state, its input and the results so far.

The state is written whole at each change, so it is one of those that batch_state.py knows whenever the
process ends. Counts of finished lines are kept in memory while a batch is under way: what is certain about
them is in its results. One thread changes states; others may look.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from ..errors import InvalidRequest
from .batch_state import Batch, Counts, Order, restored_batch
from .failures import NotFound
from .records import Page, Records, page_of, place, write_json

MOST_UNFINISHED = 100
"""Of one tenant."""
INPUT = "input.jsonl"
OUTPUT = "output.jsonl"
ERRORS = "errors.jsonl"

_STATE = "batch.json"


class BatchStore:
    """Batches below `root`, which belongs to one process."""

    def __init__(
        self, root: Path, *, most_unfinished: int = MOST_UNFINISHED, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._records = Records(root, "batch_", "batch", now_ns=now_ns)
        self._most_unfinished = most_unfinished
        self._unfinished: dict[str, Batch] = {}
        for tenant in self._records.tenants():
            for batch_id in self._records.ids(tenant):
                batch = self._read(tenant, batch_id)
                if batch.is_over:
                    self.clear(batch)
                else:
                    self._unfinished[batch_id] = batch

    # -- questions ---------------------------------------------------------------------------------

    def get(self, tenant: str, batch_id: str) -> Batch:
        """Raises NotFound."""
        known = self._unfinished.get(batch_id)
        return known if known is not None and known.tenant == tenant else self._read(tenant, batch_id)

    def page(self, tenant: str, *, limit: int, after: str | None = None) -> Page[Batch]:
        """Newest first. Raises InvalidRequest if `after` is no id."""
        ids = self._records.ids_after(tenant, after)
        return page_of(ids, lambda batch_id: self._found(tenant, batch_id), limit)

    def unfinished(self) -> list[Batch]:
        """Of all tenants, oldest first."""
        return sorted(self._unfinished.values(), key=lambda batch: batch.id)

    def folder(self, batch: Batch) -> Path:
        """Where its input and its results are."""
        return self._records.folder(batch.tenant, batch.id)

    # -- commands ----------------------------------------------------------------------------------

    def create(self, tenant: str, order: Order, source: Path) -> Batch:
        """A batch of the lines in `source`, which it keeps. Raises InvalidRequest if there are too many, and
        OSError."""
        if sum(batch.tenant == tenant for batch in self._unfinished.values()) >= self._most_unfinished:
            raise InvalidRequest(
                f"{self._most_unfinished} batches are unfinished, the most there can be: wait for some"
            )
        batch_id = self._records.new_id()
        batch = Batch(batch_id, tenant, order, self._records.created_at(batch_id))
        with self._records.staged() as folder:
            place(source, folder / INPUT)
            write_json(folder / _STATE, asdict(batch))
            self._records.keep(folder, tenant, batch_id)
        self._unfinished[batch_id] = batch
        return batch

    def update(self, batch: Batch, change: Callable[[Batch], Batch]) -> Batch:
        """What `change` makes of the batch as it is now. Raises OSError, and then nothing has changed."""
        old = self.get(batch.tenant, batch.id)
        new = change(old)
        if new != old:
            write_json(self.folder(new) / _STATE, asdict(new))
            if new.is_over:
                self._unfinished.pop(new.id, None)
            else:
                self._unfinished[new.id] = new
        return new

    def count(self, batch: Batch, completed: int, failed: int) -> None:
        """How many lines have finished by now; not written."""
        known = self._unfinished[batch.id]
        self._unfinished[batch.id] = replace(known, counts=Counts(known.counts.total, completed, failed))

    def clear(self, batch: Batch) -> None:
        """Forget input and results of a batch that is over; its state remains."""
        assert batch.is_over, "results are kept until they are in place"
        for name in (INPUT, OUTPUT, ERRORS):
            (self.folder(batch) / name).unlink(missing_ok=True)

    # -- inside ------------------------------------------------------------------------------------

    def _found(self, tenant: str, batch_id: str) -> Batch | None:
        try:
            return self.get(tenant, batch_id)
        except NotFound:
            return None

    def _read(self, tenant: str, batch_id: str) -> Batch:
        return restored_batch(json.loads((self._records.folder(tenant, batch_id) / _STATE).read_bytes()))
