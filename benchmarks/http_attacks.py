"""What a server on a network meets, at a fixed rate each, and a client beside it that wants no harm.

Runs in load generators of their own, the attacks in one and the watch in another; imports nothing but the
standard library. Every attack ends by itself, and has closed its connections then.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

import http_fuzz
from http_client import HOST, Reply, ask, begin, request
from http_streams import PATIENCE, Pace, read_stream, stream_request

ANSWER_SECONDS = 30.0
"""What an attacker waits for an answer before it leaves."""
CONNECTIONS = 500
SLOW_READERS = 20


@dataclass(slots=True)
class Attacker:
    """`statuses` counts what came back: statuses, "dropped" by the attacker itself, or "none"."""

    port: int
    key: str
    seconds: float
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    async def send(self, sent: bytes, timeout: float = ANSWER_SECONDS) -> None:
        """A request to its end. An answer that says that the server failed is kept with what was asked."""
        reply = await ask(self.port, sent, timeout)
        status = reply.status
        name = str(status) if status else "dropped" if reply.problem == "dropped" else "none"
        self.statuses[name] += 1
        if status >= 500 and status != 503:
            head, _, body = sent.partition(b"\r\n\r\n")
            self.failures.append(f"{reply.raw[:300]!r} to {head[:25]!r} with {body[:300]!r}")

    async def paced(self, rate: float, run: Callable[[int], Awaitable[None]]) -> None:
        """`run` at this rate for as long as the attack lasts, whether the ones before have ended or not."""
        begun, tasks = perf_counter(), []
        for i in range(max(1, round(rate * self.seconds))):
            await asyncio.sleep(begun + i / rate - perf_counter())
            tasks.append(asyncio.ensure_future(run(i)))
        await asyncio.gather(*tasks)

    async def all_of(self, requests: Sequence[bytes], rate: float) -> None:
        await self.paced(rate, lambda i: self.send(requests[i % len(requests)]))


async def _fuzzed(attacker: Attacker) -> None:
    await attacker.paced(50, lambda _: attacker.send(http_fuzz.fuzzed(attacker.draw, attacker.key)))


async def _large(attacker: Attacker) -> None:
    await attacker.all_of(http_fuzz.large(attacker.key, 10_000_000), 1)


async def _nearly_as_large(attacker: Attacker) -> None:
    """Less than the 4 MiB that are taken."""
    await attacker.all_of(http_fuzz.large(attacker.key, 4_000_000), 1)


async def _deep(attacker: Attacker) -> None:
    await attacker.all_of(http_fuzz.deep(attacker.key), 10)


async def _numerous(attacker: Attacker) -> None:
    await attacker.all_of(http_fuzz.numerous(attacker.key), 10)


async def _stops(attacker: Attacker) -> None:
    await attacker.all_of(http_fuzz.stops(attacker.key), 10)


async def _not_text(attacker: Attacker) -> None:
    await attacker.all_of(http_fuzz.not_text(attacker.key), 10)


async def _slow_readers(attacker: Attacker) -> None:
    """Answers that grow with every token, read a byte a second. Those with log-probabilities soon fill what
    the system keeps for a connection, so that the server has to wait."""
    params = {"max_new_tokens": 4000, "temperature": 0, "ignore_eos": True}
    body = {"text": "Once upon a time", "sampling_params": params, "stream": True}
    large = {**body, "return_logprob": True, "top_logprobs_num": 2}
    sent = [request("POST", "/generate", each, key=attacker.key) for each in (body, large)]
    until = perf_counter() + attacker.seconds
    await asyncio.gather(*(_read_slowly(attacker.port, sent[i % 2], until) for i in range(SLOW_READERS)))
    attacker.statuses["dropped"] += SLOW_READERS


async def _read_slowly(port: int, sent: bytes, until: float) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        mine.setblocking(False)
        await loop.sock_connect(mine, (HOST, port))
        await loop.sock_sendall(mine, sent)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(until - perf_counter()):
                while await loop.sock_recv(mine, 1):
                    await asyncio.sleep(1)


async def _connections(attacker: Attacker) -> None:
    """Opened and dropped, every other one behind a request."""
    sent = stream_request("/v1/completions", "Once upon a time", 64, attacker.key)
    pauses = [attacker.draw.uniform(0.0, 0.1) for _ in range(CONNECTIONS)]

    async def one(i: int) -> None:
        reply = await begin(attacker.port, sent if i % 2 else sent[: attacker.draw.randrange(40)])
        await asyncio.sleep(pauses[i % CONNECTIONS])
        reply.drop()
        await reply.whole()
        attacker.statuses["dropped"] += 1

    await attacker.paced(CONNECTIONS / attacker.seconds, one)


async def _aborted(attacker: Attacker) -> None:
    """Streams left behind some event."""

    async def one(i: int) -> None:
        sent = stream_request(("/v1/completions", "/generate")[i % 2], "Once upon a time", 256, attacker.key)
        left = 1 + i % 4

        def leave(reply: Reply) -> None:
            if len(reply.parts) >= left:
                reply.drop()

        reply = await begin(attacker.port, sent, leave)
        await reply.whole()
        attacker.statuses["dropped"] += 1

    await attacker.paced(5, one)


ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    "fuzzed bodies": _fuzzed,
    "bodies of 10 MB": _large,
    "bodies of 4 MB": _nearly_as_large,
    "JSON 10,000 deep": _deep,
    "a billion of each": _numerous,
    "10,000 stops": _stops,
    "bytes that are no text": _not_text,
    "slow readers": _slow_readers,
    "dropped connections": _connections,
    "aborted streams": _aborted,
}


async def attack(port: int, key: str, names: Sequence[str], seconds: float) -> dict[str, object]:
    """These attacks at once."""
    attacker = Attacker(port, key, seconds)
    await asyncio.gather(*(ATTACKS[name](attacker) for name in names))
    return {"statuses": dict(attacker.statuses), "failures": attacker.failures}


async def watch(port: int, key: str, seconds: float) -> dict[str, object]:
    """What one client sees for some seconds, or until it has seen something of everything: gaps between
    tokens, small requests, /health; in seconds."""
    found: dict[str, list[float]] = {"gaps": [], "small": [], "health": []}
    problems: list[str] = []
    tasks = [
        asyncio.create_task(_stream(port, key, found["gaps"], problems)),
        asyncio.create_task(_small(port, key, found["small"], problems)),
        asyncio.create_task(_health(port, found["health"], problems)),
    ]
    done, left = await asyncio.wait(tasks, timeout=seconds)
    async with asyncio.timeout(PATIENCE):
        while not done and not all(found.values()):
            done, left = await asyncio.wait(tasks, timeout=0.1)
    for task in left:
        task.cancel()
    for task in done:  # they never end but by an error
        task.result()
    await asyncio.wait(left)
    return {**found, "problems": problems}


async def _stream(port: int, key: str, gaps: list[float], problems: list[str]) -> None:
    sent = stream_request("/v1/completions", "It was a bright cold day", 200, key)
    while True:
        pace = Pace()

        def note(reply: Reply, pace: Pace = pace) -> None:
            if (gap := pace.after(reply)) is not None:
                gaps.append(gap)

        reading = read_stream("/v1/completions", await (await begin(port, sent, note)).whole())
        if reading.problem is not None:
            problems.append(f"stream: {reading.problem}")
            await asyncio.sleep(0.1)


async def _small(port: int, key: str, seconds: list[float], problems: list[str]) -> None:
    for i in count():
        body = {"prompt": f"The number after {i} is", "max_tokens": 1, "temperature": 0}
        reply = await ask(port, request("POST", "/v1/completions", body, key=key), PATIENCE)
        seconds.append(reply.seconds)
        if reply.status != 200 or not reply.is_whole:
            problems.append(f"small request: {reply.problem or reply.raw[:300]!r}")
        await asyncio.sleep(0.2)


async def _health(port: int, seconds: list[float], problems: list[str]) -> None:
    while True:
        reply = await ask(port, request("GET", "/health"), PATIENCE)
        seconds.append(reply.seconds)
        if reply.status != 200:
            problems.append(f"/health: {reply.problem or reply.raw[:300]!r}")
        await asyncio.sleep(0.05)
