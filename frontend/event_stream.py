"""Server-sent events from bytes. Pure.

Lines end at a newline only: httpx's own lines also end at characters that JSON may hold as they are (U+2028).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing


async def read_events(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[str, None]:
    """The data of each event. One that is not ended by an empty line is none."""
    data: list[str] = []
    rest = b""
    async with aclosing(chunks):
        async for chunk in chunks:
            if b"\n" not in chunk:
                rest += chunk
                continue
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                line = line.removesuffix(b"\r")
                if line.startswith(b"data:"):
                    data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
                elif not line and data:
                    yield "\n".join(data)
                    data = []
