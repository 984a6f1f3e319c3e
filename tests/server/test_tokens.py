"""Routes about tokens: texts to ids and back, and what clients are told of the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import BOS_ID, CHAT_TEMPLATE, EOS_ID, FIRST_BYTE_ID, VOCAB_SIZE
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client(byte_tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    face = ScriptedFace(byte_tokenizer, lambda _: "", max_length=77)
    with (
        running_server(face, ServerSettings(max_prompts=3)) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False) as client,
    ):
        yield client


def post(client: httpx.Client, path: str, status: int = 200, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def ids(text: str) -> list[int]:
    return [FIRST_BYTE_ID + byte for byte in text.encode()]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
def test_a_text_is_told_as_ids_with_their_number(client: httpx.Client, path: str) -> None:
    found = post(client, path, prompt="é!", model="any")
    assert found == {"tokens": [BOS_ID, *ids("é!")], "count": 4, "max_model_len": 77}
    assert post(client, path, text="é!") == found


def test_several_texts_are_told_one_by_one(client: httpx.Client) -> None:
    found = post(client, "/tokenize", prompt=["a", ""], add_special_tokens=False)
    assert (found["tokens"], found["count"]) == ([ids("a"), []], [1, 0])


def test_control_tokens_that_a_text_spells_are_read(client: httpx.Client) -> None:
    assert post(client, "/tokenize", prompt="<eos>", add_special_tokens=False)["tokens"] == [EOS_ID]


def test_spellings_of_the_vocabulary_come_where_they_are_asked_for(client: httpx.Client) -> None:
    found = post(client, "/tokenize", prompt="a the", return_token_strs=True)
    assert found["token_strs"] == ["<bos>", "a", "Ġthe"]
    assert post(client, "/tokenize", prompt=["a"], return_token_strs=True)["token_strs"] == [["<bos>", "a"]]


def test_a_conversation_is_told_as_its_prompt(client: httpx.Client, byte_tokenizer: Tokenizer) -> None:
    found = post(client, "/tokenize", messages=USER)
    assert found["tokens"] == byte_tokenizer.apply_chat_template(USER)
    bare = post(client, "/tokenize", messages=USER, add_generation_prompt=False)
    assert bare["tokens"] == byte_tokenizer.apply_chat_template(USER, False)
    assert found["count"] > bare["count"]


def test_a_long_text_is_told_too(client: httpx.Client) -> None:
    assert post(client, "/tokenize", prompt="x" * 30_000)["count"] == 30_001


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
def test_ids_are_told_as_text_under_both_names(client: httpx.Client, path: str) -> None:
    assert post(client, path, tokens=[BOS_ID, *ids("é!"), EOS_ID]) == {"text": "é!", "prompt": "é!"}
    assert post(client, path, tokens=[]) == {"text": "", "prompt": ""}


def test_control_tokens_are_spelled_where_that_is_asked_for(client: httpx.Client) -> None:
    found = post(client, "/detokenize", tokens=[[BOS_ID, *ids("a")], []], skip_special_tokens=False)
    assert found["text"] == ["<bos>a", ""]


def test_a_text_comes_back_as_it_was(client: httpx.Client) -> None:
    for text in ("", " the  cat\n", "日本語 🙂", "a\u0000b"):
        tokens = post(client, "/tokenize", prompt=text)["tokens"]
        assert post(client, "/detokenize", tokens=tokens)["text"] == text


@pytest.mark.parametrize("path", ["/tokenizer_info", "/v1/tokenizer_info"])
def test_the_tokenizer_is_described(client: httpx.Client, path: str) -> None:
    found = client.get(path).json()
    assert (found["bos_token"], found["eos_token"], found["pad_token"]) == ("<bos>", "<eos>", None)
    assert (found["bos_token_id"], found["eos_token_ids"]) == (BOS_ID, [EOS_ID])
    assert found["special_tokens"] == {"<bos>": BOS_ID, "<eos>": EOS_ID}
    assert found["chat_template"] == CHAT_TEMPLATE
    assert (found["vocab_size"], found["model_max_length"]) == (VOCAB_SIZE, 77)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/tokenize", {}, "one of prompt, text and messages is needed, got none"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "got prompt and messages"),
        ("/tokenize", {"prompt": 5}, "prompt must be a text or a list of them, got 5"),
        ("/tokenize", {"prompt": []}, "got []"),
        ("/tokenize", {"prompt": ["a", 5]}, "got ['a', 5]"),
        ("/tokenize", {"prompt": ["a"] * 4}, "prompt may hold 3 entries, got 4"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens must be true or false"),
        ("/tokenize", {"messages": []}, "messages must not be empty"),
        ("/tokenize", {"messages": USER, "tools": 5}, "tools must be a list, got 5"),
        (
            "/tokenize",
            {"messages": USER, "chat_template_kwargs": 5},
            "chat_template_kwargs must be an object",
        ),
        ("/tokenize", {"messages": USER, "add_special_tokens": True}, "must be false for messages"),
        ("/detokenize", {}, "tokens must be a list of token ids or of such lists, got None"),
        ("/detokenize", {"tokens": "a"}, "got 'a'"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens must be lists of token ids, got [1, 'a']"),
        ("/detokenize", {"tokens": [True]}, "got [True]"),
        ("/detokenize", {"tokens": [[1], 2]}, "got 2"),
        ("/detokenize", {"tokens": [-1]}, "got -1"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, f"ids from 0 to {VOCAB_SIZE - 1}, got {VOCAB_SIZE}"),
        ("/detokenize", {"tokens": [2**70]}, "tokens must be ids from 0"),
        ("/detokenize", {"tokens": [[1]] * 4}, "tokens may hold 3 entries, got 4"),
    ],
)
def test_a_wrong_value_is_named_and_quoted(
    client: httpx.Client, path: str, body: dict[str, Any], said: str
) -> None:
    assert said in post(client, path, 400, **body)["error"]["message"]
