"""What clients of a server are given: its address, a key, how often to try again. Pure."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from os import PathLike, fspath
from os.path import isfile
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .errors import InvalidCall

if TYPE_CHECKING:
    from ssl import SSLContext


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and how long after each failure: `first_s`, then twice as long each time, `most_s` at most,
    each between half and all of it by chance. A Retry-After of the server is waited for instead; one of
    more than `most_s` is not, and the call fails."""

    times: int = 3
    first_s: float = 0.25
    most_s: float = 30.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if isinstance(self.times, bool) or not isinstance(self.times, int) or self.times < 0:
            got = f"{self.times!r:.200}"
            raise InvalidCall(f"retries must be a count of at least 0, or Retries(...), got {got}")
        for name in ("first_s", "most_s"):
            if not is_seconds(value := getattr(self, name)):
                raise InvalidCall(f"{name} of Retries must be seconds above 0, got {value!r:.200}")

    def delay(self, failures: int, asked_s: float | None) -> float:
        """Seconds after so many failures. A little is added to what the server asks for, so that not all who
        were told the same come at once."""
        if asked_s is not None:
            return asked_s * (1 + self.chance() / 4)
        return min(self.first_s * 2.0**failures, self.most_s) * (1 + self.chance()) / 2


def is_seconds(value: object) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def retry_after_s(value: str | None, now: float) -> float | None:
    """Of a Retry-After header: seconds, or a date; None if it says nothing that can be understood."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (TypeError, ValueError):
        return None


def checked_url(base_url: str) -> str:
    """Without a slash at its end. Raises InvalidCall."""
    example = "like http://127.0.0.1:8000"
    if not isinstance(base_url, str):
        raise InvalidCall(f"base_url must be text {example}, got {base_url!r:.200}")
    try:
        url = urlsplit(base_url.strip())
        is_whole = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_whole = False
    is_whole = is_whole and base_url.strip().isprintable() and " " not in base_url.strip()
    if not is_whole or url.query or url.fragment:
        raise InvalidCall(f"base_url must be {example}, with http:// or https://, got {base_url!r}")
    return base_url.strip().rstrip("/")


def key_header(api_key: str | None) -> dict[str, str]:
    """Raises InvalidCall for a key that no header can hold; it is not quoted."""
    if api_key is None:
        return {}
    if not isinstance(api_key, str) or not api_key.isascii() or not api_key.isprintable() or not api_key:
        raise InvalidCall("api_key must be printable ASCII text that is not empty")
    return {"Authorization": f"Bearer {api_key}"}


def check_verify(verify: object) -> None:
    """Raises InvalidCall for what is neither a switch nor a file with certificates."""
    if verify is None or isinstance(verify, bool):
        return
    if not isinstance(verify, str | PathLike):
        raise InvalidCall(f"verify must be a file with certificates, True or False, got {verify!r:.200}")
    if not isfile(verify):
        raise InvalidCall(f"verify must be a file with certificates; there is no file {fspath(verify)!r}")


def certificates(verify: bool | str | PathLike[str] | None, scheme: str) -> bool | SSLContext:
    """What httpx is told; nothing is loaded where there is nothing to verify. Raises InvalidCall."""
    if scheme == "http" or verify is False:
        return False
    if verify is None or verify is True:
        return True
    from ssl import create_default_context

    try:
        return create_default_context(cafile=verify)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidCall(f"verify: no certificates can be read from {fspath(verify)!r}: {error}") from None
