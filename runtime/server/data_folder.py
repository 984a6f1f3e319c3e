"""DataFolder: what the endpoint keeps on disk, files and batches, and who may: one server at a time."""

from __future__ import annotations

import asyncio
import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InvalidConfig, InvalidRequest
from .batch_store import BatchStore
from .file_store import FileStore


@dataclass(frozen=True, slots=True)
class DataFolder:
    """`changes` has (tenant, id) of each batch that a client made or cancelled, for who works on them."""

    files: FileStore
    batches: BatchStore
    lock: int
    changes: asyncio.Queue[tuple[str, str]] = field(default_factory=asyncio.Queue)

    def close(self) -> None:
        """Let another server have it."""
        os.close(self.lock)


def open_data(path: str | None) -> DataFolder | None:
    """Raises InvalidConfig if the folder cannot be made, or another server has it."""
    if path is None:
        return None
    root = Path(path)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidConfig(f"data_dir: cannot use {path!r}: {reason}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return DataFolder(FileStore(root / "files"), BatchStore(root / "batches"), lock)
    except BlockingIOError:
        os.close(lock)
        raise InvalidConfig(f"data_dir: another server works with {path!r}") from None
    except OSError as error:
        os.close(lock)
        raise InvalidConfig(f"data_dir: cannot use {path!r}: {error.strerror}") from None


def require_data(data: DataFolder | None) -> DataFolder:
    """Raises InvalidRequest if the server keeps nothing."""
    if data is None:
        raise InvalidRequest(
            "this server keeps no files and no batches: it was started without --data-dir FOLDER"
        )
    return data
