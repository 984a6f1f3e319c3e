"""FileStore: files of clients on disk, each with what is said of it. Bounded in size and number.

Each tenant sees its own files only. Knows no HTTP but the classes of failures, and not what is in a file.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import InvalidRequest
from ..text import quote
from .failures import BodyTooLarge, Busy, NotFound
from .records import Page, Records, disk_failures, page_of, place, write_json

MOST_BYTES = 200 << 20
"""Of one file."""
MOST_FILES = 10_000
"""Of one tenant."""
MOST_COMING = 16
"""Uploads of one tenant at a time."""
MOST_NAME = 255
INPUT = "batch"
RESULTS = "batch_output"

_CONTENT = "content"
_FACTS = "file.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`size` is in bytes, `created_at` in seconds since 1970; the name is what the client called it."""

    id: str
    size: int
    created_at: int
    filename: str
    purpose: str

    def to_json(self) -> dict[str, object]:
        """OpenAI's file object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        }


class Upload:
    """A file that is coming in. `write` raises BodyTooLarge before more than is allowed has been kept."""

    def __init__(self, folder: Path, content: BinaryIO, most_bytes: int) -> None:
        self.folder = folder
        self.size = 0
        self._content = content
        self._most_bytes = most_bytes

    def write(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > self._most_bytes:
            raise BodyTooLarge(f"a file may have {self._most_bytes} bytes, got more")
        self._content.write(part)

    def sync(self) -> None:
        """Until the disk has it."""
        self._content.flush()
        os.fsync(self._content.fileno())


class FileStore:
    """Files below `root`, which belongs to one process."""

    def __init__(
        self,
        root: Path,
        *,
        most_bytes: int = MOST_BYTES,
        most_files: int = MOST_FILES,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._records = Records(root, "file-", "file", now_ns=now_ns)
        self.most_bytes = most_bytes
        self._most_files = most_files
        self._coming: Counter[str] = Counter()

    def new_id(self) -> str:
        return self._records.new_id()

    def get(self, tenant: str, file_id: str) -> StoredFile:
        """Raises NotFound."""
        return _read(self._records.folder(tenant, file_id))

    def content(self, tenant: str, file_id: str) -> Path:
        """Where its bytes are. Raises NotFound."""
        return self._records.folder(tenant, file_id) / _CONTENT

    def page(
        self,
        tenant: str,
        *,
        limit: int,
        after: str | None = None,
        purpose: str | None = None,
        oldest_first: bool = False,
    ) -> Page[StoredFile]:
        """Raises InvalidRequest if `after` is no id."""

        def read(file_id: str) -> StoredFile | None:
            try:
                found = self.get(tenant, file_id)
            except (FileNotFoundError, NotFound):
                return None
            return found if purpose in (None, found.purpose) else None

        return page_of(self._records.ids_after(tenant, after, oldest_first=oldest_first), read, limit)

    @contextmanager
    def upload(self, tenant: str) -> Iterator[Upload]:
        """Room for a file; nothing of it is left unless it is kept. Raises InvalidRequest if there are too
        many, Busy if too many are coming, and RequestFailed if the disk refuses, also what is done within."""
        if len(self._records.ids(tenant)) >= self._most_files:
            raise InvalidRequest(
                f"there are {self._most_files} files, which is the most there can be: delete some"
            )
        if self._coming[tenant] >= MOST_COMING:
            raise Busy(
                f"{MOST_COMING} files are being uploaded, which is the most at a time; try again later"
            )
        self._coming[tenant] += 1
        try:
            with (
                disk_failures("keep the file"),
                self._records.staged() as folder,
                (folder / _CONTENT).open("wb") as content,
            ):
                yield Upload(folder, content, self.most_bytes)
        finally:
            self._coming[tenant] -= 1

    def keep(self, upload: Upload, tenant: str, filename: str, purpose: str) -> StoredFile:
        """The upload as a file. Raises InvalidRequest for another purpose than batch."""
        if purpose != INPUT:
            raise InvalidRequest(f"purpose must be {INPUT!r}, got {quote(purpose)}")
        upload.sync()
        return self._keep(upload.folder, tenant, self.new_id(), filename[:MOST_NAME], purpose)

    def adopt(self, tenant: str, file_id: str, source: Path, filename: str) -> StoredFile:
        """What is in `source`, and will not change, as a file of results. Doing it again changes nothing."""
        with self._records.staged() as folder:
            place(source, folder / _CONTENT)
            return self._keep(folder, tenant, file_id, filename, RESULTS)

    def delete(self, tenant: str, file_id: str) -> None:
        """Raises NotFound."""
        self._records.remove(tenant, file_id)

    def _keep(self, folder: Path, tenant: str, file_id: str, filename: str, purpose: str) -> StoredFile:
        size = (folder / _CONTENT).stat().st_size
        found = StoredFile(file_id, size, self._records.created_at(file_id), filename, purpose)
        write_json(folder / _FACTS, asdict(found))
        self._records.keep(folder, tenant, file_id)
        return found


def _read(folder: Path) -> StoredFile:
    return StoredFile(**json.loads((folder / _FACTS).read_bytes()))
