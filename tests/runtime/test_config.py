"""Options of an engine: whatever a field is given that it does not allow is refused in words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from radixlm.runtime.config import EngineConfig
from radixlm.runtime.errors import InvalidConfig

NAMES = [item.name for item in fields(EngineConfig)]
OPTIONAL = ("num_pages", "max_running_per_tenant", "max_context", "threads")
NUMBERS = [name for name in NAMES if type(getattr(EngineConfig(), name)) is int or name in OPTIONAL]


def refused(**values: Any) -> str:
    with pytest.raises(InvalidConfig) as caught:
        EngineConfig(**values)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1.5, 16.0, b"auto", [], object()])
def test_no_field_takes_a_value_of_another_type(name: str, value: object) -> None:
    assert refused(**{name: value}).startswith(f"{name} must be ")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OPTIONAL])
def test_no_field_but_the_optional_ones_takes_none(name: str) -> None:
    assert refused(**{name: None}).startswith(f"{name} must be ")


@pytest.mark.parametrize("value", [0, 1, "true"])
def test_a_switch_is_true_or_false(value: object) -> None:
    assert refused(prefix_cache=value) == f"prefix_cache must be true or false, got {value!r}"


@pytest.mark.parametrize(
    ("name", "allowed"), [("dtype", "auto, float32, bfloat16, float16"), ("quantization", "none, int8")]
)
def test_a_choice_that_there_is_not_is_refused_with_those_there_are(name: str, allowed: str) -> None:
    assert refused(**{name: "int4"}) == f"{name} must be one of {allowed}, got 'int4'"


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf"), True, "0.5"])
def test_a_share_is_a_number_between_nothing_and_all(value: object) -> None:
    assert refused(hold_budget=value) == f"hold_budget must be a number from 0 to 1, got {value!r}"


@pytest.mark.parametrize("value", [0, 0.0, 0.25, 1])
def test_any_share_is_allowed(value: float) -> None:
    assert EngineConfig(hold_budget=value).hold_budget == value


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, "1", 10**30, 10**5000], ids=["bool", "text", "huge", "unprintable"])
def test_a_number_is_an_integer_that_a_machine_could_have(name: str, value: object) -> None:
    assert len(refused(**{name: value})) < 200


def test_memory_is_a_number_of_bytes_and_no_text() -> None:
    message = refused(kv_memory="64MiB")
    assert message == "kv_memory must be a number of bytes from 1 to 281474976710656, got '64MiB'"


def test_the_largest_values_are_allowed() -> None:
    EngineConfig(kv_memory=1 << 48, num_pages=1 << 48, threads=1024, seed=(1 << 64) - 1)
    assert "from 1 to 1024, got 1025" in refused(threads=1025)


@pytest.mark.parametrize("value", [None, 5, "a\udcff"])
def test_the_name_of_a_model_is_text_that_can_be_told(value: object) -> None:
    assert refused(model=value) == f"model must be text in valid Unicode, got {value!r}"
