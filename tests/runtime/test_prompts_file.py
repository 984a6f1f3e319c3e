"""The prompts file of `radixlm generate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.errors import InvalidInput
from radixlm.runtime.prompts_file import PromptLine, read_prompts
from radixlm.runtime.sampling_params import SamplingParams

DEFAULTS = SamplingParams(max_tokens=7, temperature=0.0)


def read(tmp_path: Path, text: str | bytes) -> list[PromptLine]:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_prompts(path, DEFAULTS)


def refusal(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, text)
    return str(caught.value).removeprefix(str(tmp_path / "prompts.jsonl")).removeprefix(", ")


def test_the_three_forms_of_a_prompt_are_read_in_order(tmp_path: Path) -> None:
    lines = read(
        tmp_path,
        '{"prompt": "a"}\n{"prompt_ids": [1, 2]}\n{"messages": [{"role": "user", "content": "b"}]}\n',
    )
    assert [line.prompt.content for line in lines] == ["a", (1, 2), ({"role": "user", "content": "b"},)]


def test_sampling_of_a_line_is_laid_over_the_defaults(tmp_path: Path) -> None:
    plain, own = read(tmp_path, '{"prompt": "a"}\n{"prompt": "a", "sampling": {"temperature": 0.5}}')
    assert plain.prompt.sampling is None
    assert own.prompt.sampling == SamplingParams(max_tokens=7, temperature=0.5)


def test_other_spellings_in_a_line_win_over_the_defaults_too(tmp_path: Path) -> None:
    (line,) = read(tmp_path, '{"prompt": "a", "sampling": {"max_new_tokens": 3}}')
    assert line.prompt.sampling == SamplingParams(max_tokens=3, temperature=0.0)


def test_namespace_and_priority_reach_the_prompt(tmp_path: Path) -> None:
    (line,) = read(tmp_path, '{"prompt": "a", "namespace": "tenant", "priority": 3}')
    assert (line.prompt.salt, line.prompt.priority) == ("tenant", 3)


def test_an_id_is_kept_as_it_was_written_and_a_missing_one_is_the_place(tmp_path: Path) -> None:
    lines = read(tmp_path, '{"prompt": "a", "id": "x"}\n{"prompt": "a", "id": 17}\n\n{"prompt": "a"}\n')
    assert [line.id for line in lines] == ["x", 17, "2"]
    assert [line.prompt.id for line in lines] == ["x", "17", "2"]


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_are_no_fault(tmp_path: Path) -> None:
    lines = read(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n   \n{"prompt": "b"}')
    assert [(line.number, line.prompt.content) for line in lines] == [(1, "a"), (4, "b")]


def test_a_line_separator_of_unicode_inside_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    (line,) = read(tmp_path, '{"prompt": "a\u2028b\u0085c"}')
    assert line.prompt.content == "a\u2028b\u0085c"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"', "not valid JSON: Expecting ',' delimiter at column 15"),
        ('["a"]', "must be a JSON object, got list"),
        ("[" * 100_000, "not usable JSON: "),
        ('{"prompt_ids": [' + "1" * 5_000 + "]}", "not usable JSON: "),
        ("{}", "needs exactly one of prompt, prompt_ids, messages, got none of them"),
        (
            '{"prompt": "a", "prompt_ids": [1]}',
            "needs exactly one of prompt, prompt_ids, messages, got prompt and",
        ),
        (
            '{"prompt": "a", "max_tokens": 8}',
            """'max_tokens' belongs in sampling, as in {"sampling": {"max_tokens": ...}}""",
        ),
        ('{"prompt": "a", "max_new_tokens": null}', "'max_new_tokens' belongs in sampling, as in "),
        ('{"promt": "a"}', "unknown key 'promt'; the keys are prompt, prompt_ids, messages, sampling,"),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"prompt_ids": []}', "the prompt is empty"),
        ('{"messages": []}', "the prompt is empty"),
        ('{"prompt": 5}', "prompt must be text, got 5"),
        ('{"prompt": null}', "prompt must be text, got None"),
        ('{"prompt": "\\ud83d"}', "prompt is not valid Unicode"),
        ('{"prompt_ids": "abc"}', "token ids must be a list of integers, got 'abc'"),
        ('{"prompt_ids": [1, 2.5]}', "token id 1 must be an integer of at least 0, got 2.5"),
        ('{"prompt": "a", "id": [1]}', "id must be text or an integer, got [1]"),
        ('{"prompt": "a", "namespace": 3}', "namespace must be text, got 3"),
        ('{"prompt": "a", "priority": "high"}', "priority must be an integer, got 'high'"),
        ('{"prompt": "a", "sampling": []}', "sampling must be a JSON object, got []"),
        ('{"prompt": "a", "sampling": {"temperature": -1}}', "temperature must be"),
        ('{"prompt": "a", "sampling": {"temperature": NaN}}', "temperature must be"),
        ('{"prompt": "a", "sampling": {"top_p": 1.5}}', "top_p must be"),
        ('{"prompt": "a", "sampling": {"temprature": 1}}', "unknown sampling option 'temprature'"),
        ('{"prompt": "a", "id": "first"}', "id 'first' is already the id of line 1"),
        ('{"prompt": "a", "id": "1"}\n{"prompt": "a", "id": 1}', ""),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    text = refusal(tmp_path, f'{{"prompt": "good", "id": "first"}}\n\n{line}\n')
    number = 3 + line.count("\n")
    assert text.startswith(f"line {number}: {message}")
    assert "\n" not in text


def test_bytes_that_are_no_utf_8_are_named_with_their_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, b'{"prompt": "a"}\n{"prompt": "\xff"}') == "line 2: not valid UTF-8 at byte 12"


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "\n \n") == " holds no prompts"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*absent.jsonl: No such file or directory"):
        read_prompts(tmp_path / "absent.jsonl", DEFAULTS)
    with pytest.raises(InvalidInput, match=r"cannot read .*: Is a directory"):
        read_prompts(tmp_path, DEFAULTS)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["prompt", "prompt_ids", "messages", "id", "role"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(value=_json)
def test_any_json_is_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(json.dumps(value))
    try:
        (line,) = read_prompts(path, DEFAULTS)
    except InvalidInput as error:
        assert "any.jsonl" in str(error)  # noqa: PT017
    else:
        assert line.prompt.content
