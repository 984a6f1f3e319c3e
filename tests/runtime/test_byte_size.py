"""Amounts of memory, read and shown."""

from __future__ import annotations

import pytest

from radixlm.runtime.byte_size import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GiB", 2 << 30),
        ("512 mib", 512 << 20),
        ("1.5GB", 1_500_000_000),
        ("4096", 4096),
        ("0.5 KiB", 512),
        ("7B", 7),
    ],
)
def test_units_are_read_as_people_write_them(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "2 giraffes", "-1GiB", "1e9", "nan", "1,5GB", "\u0662GiB"])
def test_anything_else_is_refused_with_what_came(text: str) -> None:
    with pytest.raises(ValueError, match="KiB, MiB, GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "9" * 400 + ".5GiB"])
def test_more_digits_than_any_machine_has_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"at most 40 digits, got '9{76}\.\.\."):
        parse_bytes(text)


def test_amounts_are_shown_in_the_largest_unit_that_fits() -> None:
    assert [format_bytes(n) for n in (12, 2048, 538_000_000, 2 << 30)] == [
        "12 B",
        "2 KiB",
        "513.1 MiB",
        "2 GiB",
    ]


@pytest.mark.parametrize("count", [1, 1 << 10, 3 << 20, 2 << 30])
def test_what_is_shown_can_be_read_again(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count
