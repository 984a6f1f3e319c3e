"""Bodies of requests as plain data, and everything that is no such thing refused in words."""

from __future__ import annotations

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.server.body import parse_json


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the body must be JSON"),
        (b"{", "the body must be JSON"),
        (b'{"a": NaN}', "NaN is no number of JSON"),
        (b'{"a": -Infinity}', "-Infinity is no number of JSON"),
        (b'{"a": "\xff"}', "the body must be UTF-8, got byte 0xff at 7"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "the body is nested too deeply"),
        (b'{"a": "\\ud800"}', r"text must be valid Unicode, got the lone surrogate '\\ud800'"),
        (b'{"\\uDfff": 1}', r"text must be valid Unicode, got the lone surrogate '\\udfff'"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "the body must be JSON"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_json(data)


def test_json_is_taken_as_it_is() -> None:
    data = '{"a": [1, 2.5, null, true, "é\\ud83d\\ude00"], "\\\\ud800": {}}'.encode()
    assert parse_json(data) == {"a": [1, 2.5, None, True, "é😀"], "\\ud800": {}}
