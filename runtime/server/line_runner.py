"""LineRunner: the lines of a batch through the server and into its journal, some of them at a time.

What must hold: cancelled anywhere, it leaves a journal of whole lines and nothing running. A line that the
server is too busy for is tried again until there is room; it never fails for that, nor when all requests of
its tenant are aborted: batches have a way of their own to be cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, TypeAlias

from ..errors import RadixError
from .batch_journal import Journal, read_journal
from .batch_lines import CheckedLines, LinePlace, check_lines, offline_body, read_body, result_line
from .batch_room import Room
from .batch_state import Batch
from .batch_store import INPUT
from .context import new_id
from .failures import body_of, status_of
from .file_thread import FileThread
from .settings import ServerSettings

Answer: TypeAlias = Callable[[dict[str, object], str], Awaitable[Mapping[str, object]]]
"""From the body of a request, and whose it is, to the body of the answer. Raises RadixError."""
Note: TypeAlias = Callable[[Journal], None]
Sleep: TypeAlias = Callable[[float], Awaitable[object]]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
_MOST_OVERTIMES = 3
"""How often a line may take longer than a request has, before that is its result."""
_LARGE = 64 << 10
"""Bytes of a line that are read on another thread."""

log = logging.getLogger("radixlm.server")


class LineRunner:
    """`answers` by endpoint. Made in the event loop that uses it."""

    def __init__(
        self, answers: Mapping[str, Answer], settings: ServerSettings, files: FileThread, sleep: Sleep
    ) -> None:
        self._answers, self._settings, self._files, self._sleep = answers, settings, files, sleep
        self._room = Room(settings)

    def check(self, batch: Batch, folder: Path) -> CheckedLines:
        """The lines of a batch. Raises OSError."""
        with (folder / INPUT).open("rb") as file:
            return check_lines(file, batch.order.endpoint, self._settings.max_body_bytes)

    async def run(self, batch: Batch, folder: Path, note: Note) -> None:
        """All that have no result yet. `note` is called after each. Raises OSError."""
        checked = await self._files.run(self.check, batch, folder)
        with (
            Journal(folder, await self._files.run(read_journal, folder)) as journal,
            (folder / INPUT).open("rb") as file,
        ):
            note(journal)
            try:
                async with asyncio.TaskGroup() as group:
                    for place in checked.places:
                        if place.custom_id not in journal.done:
                            await self._room.take(place)
                            task = group.create_task(self._run_line(batch, file, place, journal, note))
                            task.add_done_callback(partial(self._give_back, place))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None
            await self._files.run(journal.sync)

    def _give_back(self, place: LinePlace, _: asyncio.Task[None]) -> None:
        self._room.give_back(place)

    async def _run_line(
        self,
        batch: Batch,
        file: BinaryIO,
        place: LinePlace,
        journal: Journal,
        note: Note,
    ) -> None:
        is_large = place.size > _LARGE
        body = await self._files.run(read_body, file, place) if is_large else read_body(file, place)
        status, answer = await self._result(batch, body)
        line = partial(result_line, f"batch_req_{token_hex(12)}", place.custom_id, new_id("req"))
        try:
            journal.write(line(status, answer), failed=status != 200)
        except (TypeError, ValueError) as error:
            log.exception("an answer cannot be written as JSON")
            journal.write(line(status_of(error), body_of(error)), failed=True)
        note(journal)

    async def _result(self, batch: Batch, body: dict[str, object]) -> tuple[int, Mapping[str, object]]:
        pause, overtimes = _FIRST_PAUSE, 0
        while True:
            try:
                answer = self._answers[batch.order.endpoint]
                return 200, await answer(offline_body(body), batch.tenant)
            except Exception as error:
                status = status_of(error)
                overtimes += status == 504
                if status not in (503, 499) and (status != 504 or overtimes == _MOST_OVERTIMES):
                    if not isinstance(error, RadixError):
                        log.exception("a line of a batch failed")
                    return status, body_of(error)
            await self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
