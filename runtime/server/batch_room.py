"""Room: how much of batches may be under way at once, so that others find the queue of the server open."""

from __future__ import annotations

import asyncio

from .batch_lines import LinePlace
from .settings import ServerSettings

_MOST_LINES = 64


class Room:
    """Lines of all batches together. A line too large for the room has it for itself.

    Bytes stand for tokens, of which a text never has more; so lines never wait with more than a part
    of the prompts and tokens that the server lets wait.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._most = (_MOST_LINES, settings.max_queued // 4, settings.max_queued_tokens // 2)
        self._taken = (0, 0, 0)
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, line: LinePlace) -> None:
        """Waits until the line fits. In order of arrival, so that a large line is not passed by for ever."""
        async with self._turn:
            while not self._fits(line):
                self._freed.clear()
                await self._freed.wait()
            self._add(line, 1)

    def give_back(self, line: LinePlace) -> None:
        self._add(line, -1)
        self._freed.set()

    def _fits(self, line: LinePlace) -> bool:
        if not self._taken[0]:
            return True
        wanted = zip(self._taken, _size(line), self._most, strict=True)
        return all(taken + more <= most for taken, more, most in wanted)

    def _add(self, line: LinePlace, sign: int) -> None:
        lines, prompts, size = (
            taken + sign * more for taken, more in zip(self._taken, _size(line), strict=True)
        )
        self._taken = (lines, prompts, size)


def _size(line: LinePlace) -> tuple[int, int, int]:
    return (1, line.prompts, line.size)
