"""Tokenizer: text to token ids and back, for one model, from a folder or a GGUF file.

Wraps a fast tokenizer of transformers and uses its Rust core, which is never changed after loading and
so may be shared by threads. Text is exactly what the ids stand for: no clean-up of spaces, whatever the
tokenizer's configuration says, because that would change code, JSON and the place of stop strings.

A GGUF file is converted once (seconds) and kept under the cache folder, named by the content of the
file's header, checked by hash when read and rebuilt if damaged. A cache that cannot be written only
costs time. transformers is imported when a tokenizer is loaded, not with this module.

End of text, for the embedded SmolLM2 file: its header names token 2, <|im_end|>, and nothing else.
Token 0, <|endoftext|>, is its unknown token, so it does not end an answer (as in transformers) unless
the caller passes it in `extra_eos_ids`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import mmap
import re
import struct
import tempfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from .chat_template import ChatOptions, ChatTemplate
from .errors import InvalidModel, InvalidRequest
from .text import require_text

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

Decoding = Literal["byte-level", "byte-fallback", "other"]
"""byte-level: text is the UTF-8 of the tokens' bytes. byte-fallback: rare characters are pieces <0xNN>."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "tekken.json")
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MANIFEST = "manifest.json"
_CACHE_FORMAT = "1"
_HEAD = "\n"
"""A text that no tokenizer joins with what follows it, where they put a space before a text."""
_SHORT = 2000
"""Characters up to which other threads may wait for a text to be tokenized; longer ones let them run."""


class Tokenizer:
    """One model's tokenizer. `special_ids` are the control tokens that decoding can skip."""

    def __init__(self, fast: PreTrainedTokenizerFast, extra_eos_ids: Iterable[int] = ()) -> None:
        self._fast = fast
        self._core: tokenizers.Tokenizer = fast.backend_tokenizer
        self._core.no_truncation()
        self._core.no_padding()
        added = self._core.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.bos_id: int | None = fast.bos_token_id
        own: tuple[int, ...] = () if fast.eos_token_id is None else (fast.eos_token_id,)
        self.eos_ids: frozenset[int] = frozenset((*own, *extra_eos_ids))
        self.decoding: Decoding = _decoding_of(self._core)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(
        cls, location: Path, cache_dir: Path | None = None, extra_eos_ids: Iterable[int] = ()
    ) -> Tokenizer:
        """Load from a model folder or a .gguf file; None for `cache_dir` converts the latter each time.

        `extra_eos_ids` are the end-of-text ids of the model's configuration, beside the tokenizer's own.
        Raises InvalidModel.
        """
        location = Path(location)
        if location.is_dir():
            return cls(_load_folder(location), extra_eos_ids)
        if location.is_file() and location.suffix == ".gguf":
            return cls(_load_gguf(location, cache_dir), extra_eos_ids)
        raise InvalidModel(f"no tokenizer at {str(location)!r}: expected a model folder or a .gguf file")

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id. A model's table may be longer; the ids past it have no text."""
        return max(self._core.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def longest_token(self) -> int | None:
        """The most bytes that one token can stand for, so that a text has at least so many tokens as it has
        stretches of that length; None where a tokenizer may leave out parts of a text."""
        if self.decoding != "byte-level":
            return None
        return max(len(self.token_bytes(token_id)) for token_id in range(self.vocab_size))

    def encode(self, text: str, *, bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of `text`. `bos` adds what the model's tokenizer adds to plain text (often a first token,
        for some models nothing). With `special` False, control tokens spelled out in the text stay text."""
        core = self._core if special else self._literal_core
        try:
            if len(text) > _SHORT:
                return list(core.encode_batch_fast([text], add_special_tokens=bos)[0].ids)
            return list(core.encode(text, add_special_tokens=bos).ids)
        except (TypeError, UnicodeEncodeError):
            raise InvalidRequest(f"text must be a string of valid Unicode, got {_shorten(text)}") from None

    def encode_mixed(
        self, text: str, plain: Sequence[tuple[int, int]], *, bos: bool = True, middle: bool = False
    ) -> list[int]:
        """As `encode`, but in the places `plain` (first character, one past the last) of the text control
        tokens stay text. With `middle` it is encoded as it is behind other text: some tokenizers put a space
        before a text that begins."""
        if middle and self._adds_space:
            head = self.encode(_HEAD, bos=False)
            shifted = [(begin + len(_HEAD), end + len(_HEAD)) for begin, end in plain]
            ids = self.encode_mixed(f"{_HEAD}{text}", shifted, bos=False)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        typed = self._chat.spelled(text, plain)
        if not typed:
            return self.encode(text, bos=bos)
        return self._chat.encode_typed(require_text("text", text), typed, bos=bos)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of the ids; bytes that are no valid UTF-8 become U+FFFD, ids without a token give nothing."""
        try:
            return self._core.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError):
            raise InvalidRequest(f"token ids must be integers >= 0, got {_shorten(token_ids)}") from None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds to a text (a leading space included), empty for an id without a token.

        Exact for byte-level and byte-fallback tokenizers; for others the token is decoded on its own.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def piece(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token, None for an id without one."""
        return self._core.id_to_token(token_id)

    def is_byte_piece(self, piece: str) -> bool:
        """Whether the piece is one byte of a byte-fallback tokenizer, written <0xNN>."""
        return self.decoding == "byte-fallback" and _BYTE_PIECE.fullmatch(piece) is not None

    @property
    def hugging_face(self) -> PreTrainedTokenizerFast:
        """transformers' own object, for reading: what changes it changes all who use this tokenizer."""
        return self._fast

    @property
    def special_names(self) -> dict[str, str]:
        """The control tokens that have a part in the configuration: bos_token, eos_token and so on."""
        named = self._fast.special_tokens_map.items()
        return {name: token for name, token in named if isinstance(token, str)}

    def chat_template(self, *, tools: bool = False) -> str | None:
        """The source of the model's template, of that for tools if it has several; None if it has none."""
        return self._chat.source(tools=tools)

    def render_chat(
        self, messages: object, add_generation_prompt: bool = True, **options: Unpack[ChatOptions]
    ) -> str:
        """The prompt text of a conversation by the model's own template. Raises InvalidRequest for malformed
        messages, for a model without a template, and for what the template itself refuses."""
        return self._chat.render(messages, add_generation_prompt, **options).text

    def apply_chat_template(
        self, messages: object, add_generation_prompt: bool = True, **options: Unpack[ChatOptions]
    ) -> list[int]:
        """Token ids of `render_chat`. Nothing is added: the template writes its own first token. Control
        tokens that a message spells out stay text."""
        return self._chat.encode(self._chat.render(messages, add_generation_prompt, **options))

    @cached_property
    def _adds_space(self) -> bool:
        """Whether a text that begins with a letter is encoded as if a space stood before it."""
        ids = self.encode("a", bos=False)
        return bool(ids) and (self.piece(ids[0]) or "").startswith(("▁", "Ġ"))

    @cached_property
    def _chat(self) -> ChatTemplate:
        return ChatTemplate(
            self._fast,
            lambda text: self.encode(text, bos=False),
            lambda text: self.encode(text, bos=False, special=False),
        )

    @cached_property
    def _literal_core(self) -> tokenizers.Tokenizer:
        """A copy that reads control tokens as text; a copy, because the switch is not safe among threads."""
        core = type(self._core).from_str(self._core.to_str())
        core.encode_special_tokens = True
        return core

    def _find_bytes(self, token_id: int) -> bytes:
        piece = self.piece(token_id)
        if piece is None:
            return b""
        if self.decoding == "byte-level":
            return _byte_level_bytes(piece)
        if self.decoding == "byte-fallback":
            byte = _BYTE_PIECE.fullmatch(piece)
            return bytes.fromhex(byte[1]) if byte else piece.replace("▁", " ").encode()
        return self._core.decode([token_id], skip_special_tokens=False).encode()


def _decoding_of(core: tokenizers.Tokenizer) -> Decoding:
    steps = _decoder_steps(json.loads(core.decoder.__getstate__())) if core.decoder is not None else []
    kinds = [step["type"] for step in steps if step["type"] != "Fuse"]
    if kinds == ["ByteLevel"]:
        return "byte-level"
    return "byte-fallback" if "ByteFallback" in kinds else "other"


def _decoder_steps(decoder: dict[str, object]) -> list[dict[str, object]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    inner = decoder["decoders"]
    assert isinstance(inner, list), "a sequence lists its decoders"
    return [step for part in inner for step in _decoder_steps(part)]


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level vocabularies write for each byte: itself where it is visible, else the
    next unused one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(piece: str) -> bytes:
    """As the decoder does: a piece with any character outside the alphabet (an added token) is plain text."""
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:
        return piece.encode()


def _load_folder(folder: Path) -> PreTrainedTokenizerFast:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise InvalidModel(
            f"no tokenizer in folder {str(folder)!r}: expected one of {', '.join(_TOKENIZER_FILES)}"
        )
    return _from_pretrained(folder)


def _from_pretrained(folder: Path, gguf_file: str | None = None) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    source = f"{folder}/{gguf_file}" if gguf_file else str(folder)
    options = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        fast = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except Exception as error:  # the files are the model's: reading them can fail in any way
        raise InvalidModel(f"the tokenizer of {source!r} cannot be loaded: {_reason(error)}") from error
    if not isinstance(fast, PreTrainedTokenizerFast):
        raise InvalidModel(
            f"the tokenizer of {source!r} is a {type(fast).__name__}; only fast ones are supported"
        )
    return fast


def _load_gguf(file: Path, cache_dir: Path | None) -> PreTrainedTokenizerFast:
    digest = _header_digest(file)
    if cache_dir is None:
        return _from_pretrained(file.parent, file.name)
    entry = Path(cache_dir) / "tokenizers" / digest
    if _is_intact(entry):
        with contextlib.suppress(InvalidModel):  # another process may be replacing the entry
            return _from_pretrained(entry)
    fast = _from_pretrained(file.parent, file.name)
    _store(fast, entry)
    return fast


def _is_intact(entry: Path) -> bool:
    try:
        expected = json.loads((entry / _MANIFEST).read_text())
        return bool(expected) and expected == _hashes(entry)
    except (OSError, ValueError, RecursionError):
        return False


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.name != _MANIFEST)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _store(fast: PreTrainedTokenizerFast, entry: Path) -> None:
    """Write next to the entry, then rename: readers see all of it or nothing. Of two writers one wins."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=entry.parent, prefix=".new-", ignore_cleanup_errors=True)
        with scratch as folder:
            fresh = Path(folder) / "entry"
            fast.save_pretrained(str(fresh))
            (fresh / _MANIFEST).write_text(json.dumps(_hashes(fresh)))
            if _is_intact(entry):
                return  # another process was faster
            if entry.exists():
                entry.rename(Path(folder) / "damaged")
            fresh.rename(entry)
    except OSError:
        return  # a cache that cannot be written only costs time


def _header_digest(file: Path) -> str:
    """A hash of a GGUF file's key-value part. Only this part shapes the tokenizer, and it is small, so the
    weights behind it need no reading. The digest also covers the version of the converting library."""
    versions = f"{_CACHE_FORMAT} {importlib.metadata.version('transformers')}"
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return hashlib.sha256(data[: _GgufHeader(data).end] + versions.encode()).hexdigest()
    except (OSError, ValueError, OverflowError, RecursionError, struct.error) as error:
        raise InvalidModel(f"{str(file)!r} is not a readable GGUF file: {_reason(error)}") from error


class _GgufHeader:
    """Walks the key-value pairs at the head of a GGUF file, to find where they `end`."""

    _SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # noqa: RUF012
    _STRING, _ARRAY = 8, 9

    def __init__(self, data: mmap.mmap) -> None:
        magic, version, _, pairs = struct.unpack_from("<4sIQQ", data)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"no little-endian GGUF of version 2 or 3, it starts with {data[:8]!r}")
        self._data = data
        self.end = struct.calcsize("<4sIQQ")
        for _ in range(pairs):
            self._skip(self._STRING, 1)
            self._skip(self._integer("<I"), 1)

    def _integer(self, code: str) -> int:
        (value,) = struct.unpack_from(code, self._data, self.end)
        self.end += struct.calcsize(code)
        return int(value)

    def _skip(self, kind: int, count: int) -> None:
        if kind in self._SIZES:
            self._pass(count * self._SIZES[kind])
        elif kind == self._STRING:
            for _ in range(count):
                self._pass(self._integer("<Q"))
        elif kind == self._ARRAY:
            for _ in range(count):
                self._skip(self._integer("<I"), self._integer("<Q"))
        else:
            raise ValueError(f"unknown value type {kind}")

    def _pass(self, size: int) -> None:
        self.end += size
        if self.end > len(self._data):
            raise ValueError("the file ends inside its header")


def _reason(error: Exception) -> str:
    """The first line of an error, which is enough for a caller; the rest stays in the chained traceback."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
