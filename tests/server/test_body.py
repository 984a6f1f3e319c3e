"""Bodies of requests as plain data, and everything that is no such thing refused in words."""

from __future__ import annotations

import codecs

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.server.body import parse_json


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the body must be JSON"),
        (b"{", "the body must be JSON"),
        (b'{"a": NaN}', r"finite numbers.*byte 6"),
        (b'{"a": -Infinity}', "finite numbers.*byte 7"),
        (b'{"a": 1e400}', "finite numbers.*out of range"),
        (b'{"a": "\xff"}', "the body must be JSON, in UTF-8, .*: got byte 0xff at 7"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "the body is nested too deeply"),
        (b'{"a": "\\ud800"}', "no lone surrogates"),
        (b'{"a": "\\ud800\\u0041"}', "no lone surrogates"),
        (b'{"\\uDfff": 1}', "no lone surrogates"),
        ('{"a": 1}'.encode("utf-16"), "got byte 0xff at 0"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "the body must be JSON"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_json(data)


def test_json_is_taken_as_it_is() -> None:
    data = '{"a": [1, 2.5, null, true, "é\\ud83d\\ude00"], "\\\\ud800": {}}'.encode()
    for mark in (b"", codecs.BOM_UTF8):
        assert parse_json(mark + data) == {"a": [1, 2.5, None, True, "é😀"], "\\ud800": {}}
    assert parse_json(b"[123456789012345678901234567890, 1.0]") == [123456789012345678901234567890, 1.0]
