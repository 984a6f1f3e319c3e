"""A form with one file, read as it comes: the file goes where the caller says, fields are kept.

Bounded in everything but the file, which the caller bounds: number of parts, their headers, values of fields.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ..errors import InvalidRequest
from ..text import quote

_MOST_PARTS = 32
_MOST_HEADER_BYTES = 16 << 10
"""Of all parts together."""
_MOST_VALUE_BYTES = 16 << 10
"""Of all fields together."""
_FILE = "file"


class UploadForm:
    """`fields` are those that are not the file; `filename` is None until the file has begun."""

    def __init__(self, content_type: str, write: Callable[[bytes], None]) -> None:
        """`write` gets what is in the part called "file". Raises InvalidRequest if it is no such form."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidRequest(
                f"the body must be multipart/form-data with a file and its purpose, got {quote(content_type)}"
            )
        self.filename: str | None = None
        self.fields: dict[str, str] = {}
        self._write = write
        self._parts = self._header_bytes = self._value_bytes = 0
        self._is_whole = False
        self._begin()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_end": self._finish,
                },
            )
        except FormParserError as error:
            raise InvalidRequest(f"the boundary of the form cannot be used: {error}") from None

    async def read(self, parts: AsyncIterator[bytes]) -> None:
        """All of the body. Raises InvalidRequest for what is no whole form with one file, and what `write`
        raises."""
        async for part in parts:
            try:
                self._parser.write(part)
            except FormParserError as error:
                raise InvalidRequest(f"the form cannot be read: {error}") from None
        if not self._is_whole:
            raise InvalidRequest("the form ends before its last boundary")
        if self.filename is None:
            raise InvalidRequest(
                f"the form must have a part called {_FILE!r}, got {quote(sorted(self.fields))}"
            )

    # -- what the parser calls -----------------------------------------------------------------------

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS + 1:  # one is counted before the first begins
            raise InvalidRequest(f"the form may have {_MOST_PARTS} parts, got more")
        self._header = b""
        self._header_name = b""
        self._disposition = b""
        self._name = ""
        self._value = bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header_name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header += data[start:end]

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _MOST_HEADER_BYTES:
            raise InvalidRequest(f"the headers of a form may have {_MOST_HEADER_BYTES} bytes, got more")

    def _header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header
        self._header = self._header_name = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise InvalidRequest("each part of the form must have a name")
        self._name = options[b"name"].decode(errors="replace")
        if self._name == _FILE:
            if self.filename is not None:
                raise InvalidRequest(f"the form must have one part called {_FILE!r}, got two")
            self.filename = options.get(b"filename", b"").decode(errors="replace") or _FILE

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == _FILE:
            self._write(data[start:end])
            return
        self._value_bytes += end - start
        if self._value_bytes > _MOST_VALUE_BYTES:
            raise InvalidRequest(f"the fields of a form may have {_MOST_VALUE_BYTES} bytes, got more")
        self._value += data[start:end]

    def _end(self) -> None:
        if self._name != _FILE:
            self.fields[self._name] = self._value.decode(errors="replace")

    def _finish(self) -> None:
        self._is_whole = True
