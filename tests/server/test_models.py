"""/v1/models and /v1/embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.tokenizer import Tokenizer
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

OpenFace = Callable[..., ScriptedFace]


@pytest.fixture(scope="module")
def client(byte_tokenizer: Tokenizer) -> Iterator[httpx.Client]:
    face = ScriptedFace(byte_tokenizer, lambda _: "text", max_length=300)
    with (
        running_server(face, ServerSettings(served_model_name="org/name v1")) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False) as found,
    ):
        yield found


def test_the_served_model_is_the_only_one(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    [card] = listed["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("org/name v1", "model", 300)
    assert client.get("/v1/models/org/name%20v1").json() == card


def test_another_model_is_a_404(client: httpx.Client) -> None:
    for name in ("org", "org/name", "gpt-4"):
        reply = client.get(f"/v1/models/{name}")
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "model_not_found"
        assert repr(name) in reply.json()["error"]["message"]


def test_embeddings_are_refused_with_the_reason(client: httpx.Client) -> None:
    reply = client.post("/v1/embeddings", json={"input": "a text"})
    assert reply.status_code == 400
    assert "'org/name v1' generates text and gives no embeddings" in reply.json()["error"]["message"]
    assert client.post("/v1/embeddings", json={"input": "a", "model": "other"}).status_code == 404
