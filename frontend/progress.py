"""How far a batch is, in items and tokens, on standard error: a bar by tqdm, or plain lines where there is
none. Nothing is shown where that is no terminal, unless it is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Show = Callable[[int, int], None]
"""Told of finished items, and of the tokens they generated."""

_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def progress_bar(total: int, shown: bool | Literal["always"]) -> Iterator[Show]:
    stream = sys.stderr
    if not shown or stream is None or (shown != "always" and not stream.isatty()):
        yield lambda items, tokens: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield _lines(total)
        return
    with tqdm(total=total, unit="item", file=stream) as bar:
        generated = 0

        def show(items: int, tokens: int) -> None:
            nonlocal generated
            generated += tokens
            bar.set_postfix_str(f"{generated} tokens", refresh=False)
            bar.update(items)

        yield show


def _lines(total: int) -> Show:
    """A line now and then, and one at the end."""
    done = generated = 0
    last = time.monotonic()

    def show(items: int, tokens: int) -> None:
        nonlocal done, generated, last
        done, generated = done + items, generated + tokens
        if done == total or time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{done} of {total} items, {generated} tokens", file=sys.stderr, flush=True)

    return show
