"""BatchRunner: takes the batches of a data folder to their ends, in the background.

Each batch has a task, which reads from the disk how far it is; those of one tenant run their lines one after
the other. What must hold: a task may be given up at any moment, and so may the process, and the next one does
what is left and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex

from .batch_journal import Journal, read_journal
from .batch_lines import LineFault, unrun_line
from .batch_state import Batch, Counts, Outcome
from .batch_store import ERRORS, OUTPUT
from .data_folder import DataFolder
from .failures import NotFound
from .file_thread import FileThread
from .line_runner import Answer, LineRunner, Sleep
from .settings import ServerSettings

_DISK_PAUSE = 30.0
"""Seconds until work goes on after the disk refused something."""

log = logging.getLogger("radixlm.server")


@dataclass(frozen=True, slots=True)
class _Work:
    task: asyncio.Task[None]
    cancelled: asyncio.Event


@dataclass(frozen=True, slots=True)
class _End:
    outcome: Outcome
    faults: tuple[LineFault, ...] = ()


class BatchRunner:
    """`answers` by endpoint; `now` is in seconds since 1970. Made in the event loop that uses it."""

    def __init__(
        self,
        data: DataFolder,
        answers: Mapping[str, Answer],
        settings: ServerSettings,
        *,
        sleep: Sleep = asyncio.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._data, self._store = data, data.batches
        self._files = FileThread()
        self._lines = LineRunner(answers, settings, self._files, sleep)
        self._sleep, self._now = sleep, now
        self._work: dict[str, _Work] = {}
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self) -> None:
        """Until it is cancelled; then nothing of it runs any more."""
        try:
            for batch in self._store.unfinished():
                self._look_at(batch)
            while True:
                tenant, batch_id = await self._data.changes.get()
                with suppress(NotFound):  # removed from the disk by somebody
                    self._look_at(self._store.get(tenant, batch_id))
        finally:
            tasks = [work.task for work in self._work.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def _look_at(self, batch: Batch) -> None:
        """Something may be new about it."""
        if batch.id not in self._work and not batch.is_over:
            cancelled = asyncio.Event()
            task = asyncio.create_task(self._take_to_end(batch, cancelled))
            self._work[batch.id] = _Work(task, cancelled)
            task.add_done_callback(lambda _: self._work.pop(batch.id))
        elif batch.status == "cancelling":
            self._work[batch.id].cancelled.set()

    # -- one batch ---------------------------------------------------------------------------------

    async def _take_to_end(self, batch: Batch, cancelled: asyncio.Event) -> None:
        while True:
            try:
                await self._work_on(self._store.get(batch.tenant, batch.id), cancelled)
                return
            except NotFound:
                log.error("a batch is gone from the disk", extra={"fields": {"batch": batch.id}})
                return
            except OSError as error:
                fields = {"batch": batch.id, "reason": str(error), "again_after": _DISK_PAUSE}
                log.error("a batch waits for the disk", extra={"fields": fields})
            await self._sleep(_DISK_PAUSE)

    async def _work_on(self, batch: Batch, cancelled: asyncio.Event) -> None:
        if batch.outcome is None:
            end = await self._end_of(batch, cancelled)
            ids = self._data.files.new_id(), self._data.files.new_id()
            batch = self._update(batch, lambda b: b.ending(end.outcome, *ids, self._seconds(), end.faults))
        counts, sizes = await self._files.run(self._keep_results, batch)
        has_output, has_errors = (size > 0 for size in sizes)
        batch = self._update(batch, lambda b: b.ended(counts, has_output, has_errors, self._seconds()))
        await self._files.run(self._store.clear, batch)

    async def _end_of(self, batch: Batch, cancelled: asyncio.Event) -> _End:
        """Runs what is left, until it is done, cancelled, or late. Raises OSError."""
        if batch.status == "cancelling":
            return _End("cancelled")
        left = batch.expires_at - self._now()
        if left <= 0:
            return _End("expired")
        work = asyncio.create_task(self._run(batch))
        stop = asyncio.create_task(cancelled.wait())
        try:
            await asyncio.wait((work, stop), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            work.cancel()
            await asyncio.wait((work,))
        if work.cancelled():
            return _End("cancelled" if cancelled.is_set() else "expired")
        error = work.exception()
        if error is None:
            return work.result()
        if isinstance(error, OSError | NotFound):
            raise error
        log.error("a batch failed", extra={"fields": {"batch": batch.id}}, exc_info=error)
        return _End("failed", (LineFault("server_error", f"internal error: {type(error).__name__}"),))

    async def _run(self, batch: Batch) -> _End:
        folder = self._store.folder(batch)
        if batch.status == "validating":
            checked = await self._files.run(self._lines.check, batch, folder)
            if checked.faults:
                return _End("failed", checked.faults)
            batch = self._update(batch, lambda b: b.begun(len(checked.places), self._seconds()))
        else:
            results = await self._files.run(read_journal, folder)
            self._store.count(batch, len(results.output.ids), len(results.errors.ids))
        async with self._turns[batch.tenant]:
            await self._lines.run(
                batch, folder, lambda journal: self._store.count(batch, journal.completed, journal.failed)
            )
        return _End("completed")

    def _keep_results(self, batch: Batch) -> tuple[Counts, tuple[int, int]]:
        """Results so far as files; doing it again changes nothing."""
        folder, files = self._store.folder(batch), self._data.files
        with Journal(folder, read_journal(folder)) as journal:
            if batch.outcome == "expired" and "in_progress" in batch.times:
                self._write_unrun(batch, journal)
            journal.sync()
        ids = (batch.output_file_id, batch.error_file_id)
        for file_id, name, size in zip(ids, (OUTPUT, ERRORS), journal.sizes, strict=True):
            assert file_id is not None, "ids of results are set with the outcome"
            if size:
                files.adopt(batch.tenant, file_id, folder / name, f"{batch.id}_{name}")
        return Counts(batch.counts.total, journal.completed, journal.failed), journal.sizes

    def _write_unrun(self, batch: Batch, journal: Journal) -> None:
        window = batch.order.completion_window
        message = f"the line has not run within the completion window of {window}"
        for place in self._lines.check(batch, self._store.folder(batch)).places:
            if place.custom_id not in journal.done:
                line_id = f"batch_req_{token_hex(12)}"
                journal.write(unrun_line(line_id, place.custom_id, "batch_expired", message), failed=True)

    # -- states ------------------------------------------------------------------------------------

    def _update(self, batch: Batch, change: Callable[[Batch], Batch]) -> Batch:
        new = self._store.update(batch, change)
        fields = {
            "batch": new.id,
            "status": new.status,
            "lines": new.counts.total,
            "failed": new.counts.failed,
        }
        log.info("batch", extra={"fields": fields})
        return new

    def _seconds(self) -> int:
        return int(self._now())
