"""Writes what a run gave: completions or scores as JSON lines, figures as one JSON object.

A file appears whole or not at all: the text goes to a new file in the same folder, which is renamed over
the target at the end. A target that is no regular file (a pipe, /dev/null), or that names an open one
(/dev/stdout, /dev/fd/3), is written to as it is, never replaced. `require_writable` finds a bad target
before hours of work, not after them.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InvalidInput, RadixError
from .types import Completion, ItemScore

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")
_ALWAYS = ("id", "index", "text", "output_ids", *_COUNTS, "finish_reason")
_OF_CONTINUATION = ("text", "logprob", "mean_logprob", "is_greedy", "token_logprobs")
_WHERE_SET = ("matched_stop", "error", "logprobs", "prompt_logprobs")


def require_writable(flag: str, path: Path) -> Path:
    """The file that will be written for `path`: links are followed, also those that lead to no file yet.

    Raises InvalidInput, naming the flag, if a file could not be put there.
    """
    try:
        target = _target(path)
        folder = target.parent
        if not stat.S_ISDIR(_mode(folder)):
            raise InvalidInput(f"{flag}: there is no folder {str(folder)!r}")
        mode = _mode(target)
        if stat.S_ISDIR(mode):
            raise InvalidInput(f"{flag}: {str(path)!r} is a folder, not a file")
        as_it_is = _is_special(mode) or _names_descriptor(target)
        allowed = os.access(target, os.W_OK) if as_it_is else os.access(folder, os.W_OK | os.X_OK)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"{flag}: cannot write {str(path)!r}: {reason}") from error
    if not allowed:
        raise InvalidInput(f"{flag}: no permission to write {str(path)!r}")
    return target


def result_line(completion: Completion, identity: str | int) -> str:
    """One output line, without its line end. `identity` is the id as the prompts file spelt it."""
    fields = {**asdict(completion), "id": identity}
    line = {name: fields[name] for name in _ALWAYS}
    line |= {name: fields[name] for name in _WHERE_SET if fields[name] not in (None, ())}
    if completion.forced_tokens:
        line["forced_tokens"] = completion.forced_tokens
    return _json(line)


def score_line(score: ItemScore, identity: str | int) -> str:
    """The same of an item's scores."""
    each = [{name: getattr(one, name) for name in _OF_CONTINUATION} for one in score.continuations]
    line: dict[str, object] = {"id": identity, "continuations": each}
    line |= {name: getattr(score, name) for name in ("best", "cached_tokens", "computed_tokens")}
    if score.error is not None:
        line["error"] = score.error
    return _json(line)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes JSON lines. Raises RadixError if the disk refuses; the target is then as it was."""
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def write_figures(path: Path, figures: DataclassInstance, **more: float) -> None:
    """Writes the fields of a dataclass, and what comes with them, as one JSON object."""
    write_atomically(path, _json({**asdict(figures), **more}, indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Puts `text` at `path`, whole or not at all. Raises RadixError."""
    try:
        target = _target(path)
        if _is_special(_mode(target)) or _names_descriptor(target):
            with target.open("a", encoding="utf-8") as file:  # never cuts what a shell redirected to
                file.write(text)
        else:
            _replace(target, text)
    except OSError as error:
        raise RadixError(f"cannot write {path}: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    # 50 characters are at most 200 bytes, of the 255 that a name may have
    temporary = path.with_name(f".{path.name[:50]}.{os.getpid()}.partial")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _target(path: Path) -> Path:
    """Through links, so that a link stays a link; but the name of an open file stays what it is."""
    return path if _names_descriptor(path) else Path(os.path.realpath(path))


def _names_descriptor(path: Path) -> bool:
    """Whether the path stands for a file that a process holds open, such as /dev/stdout."""
    return re.fullmatch(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+", str(path)) is not None


def _mode(path: Path) -> int:
    """Kind and permissions of what lies there; 0 where there is nothing."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _is_special(mode: int) -> bool:
    return mode != 0 and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _json(value: Mapping[str, object], indent: int | None = None) -> str:
    """What UTF-8 cannot carry is written as the escape that JSON has for it: results are never lost to it."""
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode()


def _finite(value: object) -> object:
    """JSON has no infinities: a figure that is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
