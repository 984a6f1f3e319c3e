"""A scripted backend of which a test shuts and opens the way for single calls, by how their prompts end."""

from __future__ import annotations

import asyncio
import threading

from radixlm.frontend.loop import the_loop
from radixlm.frontend.protocol import GenerateCall, Generated, Part, Plain
from radixlm.frontend.scripted import Scripted


class GatedBackend(Scripted):
    """A call whose prompt ends in a text that is shut waits until that is opened. `came` are the endings that
    calls waited at, and `aborted` those at which waiting calls were cancelled."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]  # as Scripted takes them
        self.came: list[str] = []
        self.aborted: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._news = threading.Condition()

    def shut(self, *endings: str) -> None:
        for ending in endings:
            self._gates[ending] = asyncio.Event()

    def open(self, ending: str) -> None:
        the_loop().call_soon_threadsafe(self._gates[ending].set)

    def wait_until_came(self, *endings: str) -> None:
        self._wait(lambda: set(endings) <= set(self.came))

    def wait_until_aborted(self, *endings: str) -> None:
        self._wait(lambda: set(endings) <= set(self.aborted))

    def wait_until_ended(self, count: int) -> None:
        """So many branches have been told to be over."""
        self._wait(lambda: len(self.endings()) >= count)

    def endings(self) -> dict[str, str]:
        """How each branch ended, releases aside."""
        found: dict[str, str] = {}
        for ids, how in list(self.ended):
            for each in ids:
                if how != "released":
                    assert each not in found, f"{each} ended twice: {found[each]}, {how}"
                    found[each] = how
        return found

    async def generate(self, call: GenerateCall) -> list[Generated]:
        prompt = "".join(map(_text, call.parts))
        ending = next((each for each in self._gates if prompt.endswith(each)), None)
        if ending is not None:
            self._note(self.came, ending)
            try:
                await self._gates[ending].wait()
            except asyncio.CancelledError:
                self._note(self.aborted, ending)
                raise
        return await super().generate(call)

    def end(self, program_ids, how) -> None:  # type: ignore[no-untyped-def]  # as Scripted has it
        with self._news:
            super().end(program_ids, how)
            self._news.notify_all()

    def _note(self, where: list[str], ending: str) -> None:
        with self._news:
            where.append(ending)
            self._news.notify_all()

    def _wait(self, condition) -> None:  # type: ignore[no-untyped-def]
        with self._news:
            assert self._news.wait_for(condition, 10), (self.came, self.aborted, self.ended)


def _text(part: Part) -> str:
    """A token is a character, as Scripted has it."""
    if isinstance(part, tuple):
        return "".join(map(chr, part))
    return part.text if isinstance(part, Plain) else part
