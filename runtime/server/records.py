"""Records: folders on disk that belong to a tenant and are named by an id: one file, one batch.

A record is put together in `partial/` and appears by one rename, so it is there whole or not at all, whenever
the process ends. An id begins with the time, so that ids sort by age, and ends in 96 random bits. What must
hold: nothing but the name of a tenant and an id of that form becomes part of a path, so no tenant reaches
another's records, nor anything else on the disk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Generic, TypeVar

from ..errors import InvalidRequest, RequestFailed
from ..text import quote
from .failures import NotFound

T = TypeVar("T")

_NO_TENANT = "open"
_PARTIAL = "partial"
_TAIL = re.compile(r"[0-9a-f]{40}")
_TENANT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of a list, and whether it goes on."""

    items: tuple[T, ...]
    has_more: bool


class Records:
    """Those below `root`; the folder is made. `what` is what one is called, such as "file". Whatever was
    under way when a process ended is removed, so only one process may use the folder."""

    def __init__(
        self, root: Path, prefix: str, what: str, *, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._root, self._prefix, self._what, self._now_ns = root, prefix, what, now_ns
        shutil.rmtree(root / _PARTIAL, ignore_errors=True)
        (root / _PARTIAL).mkdir(mode=0o700, parents=True, exist_ok=True)

    # -- questions ---------------------------------------------------------------------------------

    def new_id(self) -> str:
        return f"{self._prefix}{self._now_ns():016x}{token_hex(12)}"

    def created_at(self, record_id: str) -> int:
        """Seconds since 1970."""
        return int(record_id.removeprefix(self._prefix)[:16], 16) // 1_000_000_000

    def folder(self, tenant: str, record_id: str) -> Path:
        """Raises NotFound where there is none."""
        found = self._path(tenant, record_id) if self._is_id(record_id) else None
        if found is None or not found.is_dir():
            raise NotFound(f"there is no {self._what} {quote(record_id)}")
        return found

    def tenants(self) -> list[str]:
        names = os.listdir(self._root)
        return [name for name in names if _TENANT.fullmatch(name)] + [""] * (_NO_TENANT in names)

    def ids(self, tenant: str) -> list[str]:
        """Oldest first."""
        try:
            names = os.listdir(self._tenant_folder(tenant))
        except FileNotFoundError:
            return []
        return sorted(filter(self._is_id, names))

    def ids_after(self, tenant: str, after: str | None, *, oldest_first: bool = False) -> Iterator[str]:
        """Those behind `after`, which need not exist any more. Raises InvalidRequest if it is no id."""
        if after is not None and not self._is_id(after):
            raise InvalidRequest(f"after must be the id of a {self._what}, got {quote(after)}")
        ids = self.ids(tenant)
        if oldest_first:
            return (one for one in ids if after is None or one > after)
        return (one for one in reversed(ids) if after is None or one < after)

    # -- commands ----------------------------------------------------------------------------------

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """An empty folder for a record to be, which is removed in the end if it was not kept."""
        folder = self._root / _PARTIAL / token_hex(16)
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, folder: Path, tenant: str, record_id: str) -> None:
        """Make a staged folder the record of that id. Nothing happens if there is one already."""
        target = self._path(tenant, record_id)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        if not target.exists():
            folder.rename(target)

    def remove(self, tenant: str, record_id: str) -> None:
        """Raises NotFound."""
        folder, gone = self.folder(tenant, record_id), self._root / _PARTIAL / token_hex(16)
        try:
            folder.rename(gone)
        except FileNotFoundError:
            raise NotFound(f"there is no {self._what} {quote(record_id)}") from None
        shutil.rmtree(gone, ignore_errors=True)

    # -- inside ------------------------------------------------------------------------------------

    def _is_id(self, text: str) -> bool:
        return text.startswith(self._prefix) and _TAIL.fullmatch(text[len(self._prefix) :]) is not None

    def _path(self, tenant: str, record_id: str) -> Path:
        assert self._is_id(record_id), "ids are made here, or were looked at"
        return self._tenant_folder(tenant) / record_id

    def _tenant_folder(self, tenant: str) -> Path:
        assert not tenant or _TENANT.fullmatch(tenant), "a tenant is named by a digest"
        return self._root / (tenant or _NO_TENANT)


def page_of(ids: Iterable[str], read: Callable[[str], T | None], limit: int) -> Page[T]:
    """The first `limit` of what `read` finds; it gives None for what is not wanted, or is gone."""
    items: list[T] = []
    for one in ids:
        item = read(one)
        if item is None:
            continue
        if len(items) == limit:
            return Page(tuple(items), True)
        items.append(item)
    return Page(tuple(items), False)


def page_json(page: Page[T], to_json: Callable[[T], dict[str, object]]) -> dict[str, object]:
    """A page as OpenAI's clients read it."""
    data = [to_json(item) for item in page.items]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": page.has_more}


def write_json(path: Path, value: object) -> None:
    """The file holds the value, or what it held before, whenever the process ends."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def place(source: Path, target: Path) -> None:
    """The content of one file under a second name; both must not be changed from here on."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a disk without links
        shutil.copyfile(source, target)


@contextmanager
def disk_failures(what: str) -> Iterator[None]:
    """A disk that refuses, as an error that says so to a client: RequestFailed."""
    try:
        yield
    except OSError as error:
        raise RequestFailed(f"cannot {what}: {error.strerror or error}") from error
