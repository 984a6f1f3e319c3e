"""What crosses from the engine's thread to a loop, and the box in which a coroutine waits for it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from radixlm.runtime.post import Mailbox, Post


def test_items_come_in_their_order_from_another_thread() -> None:
    async def test() -> list[int]:
        post, box = Post(), Mailbox[int]()
        sender = threading.Thread(target=lambda: [post.send(partial(box.put, item)) for item in range(1000)])
        sender.start()
        async with asyncio.timeout(20):
            found = [await box.get() for _ in range(1000)]
        sender.join()
        return found

    assert asyncio.run(test()) == list(range(1000))


def test_what_is_there_is_taken_without_a_wait() -> None:
    async def test() -> None:
        box = Mailbox[str]()
        box.put("a")
        with pytest.raises(StopIteration, match="a"):
            box.get().send(None)

    asyncio.run(test())


def test_a_taker_that_is_cancelled_loses_nothing() -> None:
    async def test() -> None:
        box = Mailbox[str]()
        for comes_first in (True, False):
            taker = asyncio.ensure_future(box.get())
            await asyncio.sleep(0)
            if comes_first:
                box.put("a")
                taker.cancel()
            else:
                taker.cancel()
                box.put("a")
            await asyncio.wait((taker,))
            assert taker.cancelled()
            async with asyncio.timeout(20):
                assert await box.get() == "a"

    asyncio.run(test())
