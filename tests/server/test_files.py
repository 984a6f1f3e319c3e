"""/v1/files, and what is below it: forms, records on disk, the folder that one server has."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixlm.runtime.errors import InvalidConfig, InvalidRequest
from radixlm.runtime.server import body
from radixlm.runtime.server.data_folder import open_data
from radixlm.runtime.server.failures import BodyTooLarge, Busy, NotFound
from radixlm.runtime.server.file_store import MOST_COMING, FileStore, StoredFile
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.server.upload_form import UploadForm
from radixlm.runtime.tokenizer import Tokenizer
from testkit.http_server import received_until, running_server
from testkit.scripted_face import ScriptedFace

MINE = {"Authorization": "Bearer mine"}
THEIRS = {"Authorization": "Bearer theirs"}
TENANT = "0123456789abcdef" * 2
Client = httpx.Client


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def client(byte_tokenizer: Tokenizer, data_dir: Path) -> Iterator[Client]:
    settings = ServerSettings(api_keys=("mine", "theirs"), data_dir=str(data_dir))
    face = ScriptedFace(byte_tokenizer, lambda _: "text")
    with (
        running_server(face, settings) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False, headers=MINE) as found,
    ):
        yield found


def upload(client: Client, content: bytes = b"{}\n", name: str = "a.jsonl", **more: Any) -> dict[str, Any]:
    reply = client.post("/v1/files", files={"file": (name, content)}, data={"purpose": "batch"}, **more)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def listed(client: Client, **query: Any) -> list[str]:
    found = client.get("/v1/files", params=query)
    assert found.status_code == 200, found.text
    return [one["id"] for one in found.json()["data"]]


def refused(reply: httpx.Response, status: int = 400) -> str:
    assert reply.status_code == status, reply.text
    return str(reply.json()["error"]["message"])


# -- over HTTP -------------------------------------------------------------------------------------


def test_a_file_comes_back_as_it_was_sent(client: Client) -> None:
    content = bytes(range(256)) * 2000 + b"\r\n--boundary\r\n\n"
    found = upload(client, content, "requests.jsonl")
    created, file_id = found.pop("created_at"), found.pop("id")
    assert isinstance(created, int)
    assert file_id.startswith("file-")
    assert found == {
        "object": "file",
        "bytes": len(content),
        "filename": "requests.jsonl",
        "purpose": "batch",
        "status": "processed",
    }
    assert client.get(f"/v1/files/{file_id}").json() == {**found, "id": file_id, "created_at": created}
    reply = client.get(f"/v1/files/{file_id}/content")
    assert reply.content == content
    assert reply.headers["content-disposition"].startswith("attachment")
    assert client.delete(f"/v1/files/{file_id}").json() == {"id": file_id, "object": "file", "deleted": True}
    for path in (file_id, f"{file_id}/content"):
        assert repr(file_id) in refused(client.get(f"/v1/files/{path}"), 404)
    refused(client.delete(f"/v1/files/{file_id}"), 404)


@pytest.mark.parametrize("name", ['a "quoted" name', "../../etc/passwd", "naïve 日本.jsonl", "n" * 900])
def test_a_name_is_only_a_name(client: Client, name: str) -> None:
    found = upload(client, b"abc", name)
    assert len(found["filename"]) <= 255
    assert client.get(f"/v1/files/{found['id']}/content").content == b"abc"


def test_an_empty_file_can_be_kept(client: Client) -> None:
    found = upload(client, b"")
    assert found["bytes"] == 0
    assert client.get(f"/v1/files/{found['id']}/content").content == b""


@pytest.mark.parametrize("size", [0, 1, 65536, 131072])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_client_that_has_all_bytes_of_a_file_may_ask_on(client: Client, size: int, method: str) -> None:
    """By Content-Length it knows so before the server has found the end of the file."""
    path = f"/v1/files/{upload(client, bytes(size))['id']}/content"
    for _ in range(20):
        reply = client.request(method, path)
        assert reply.status_code == 200
        assert reply.headers["content-length"] == str(size)
        assert len(reply.content) == (size if method == "GET" else 0)


def test_files_are_listed_newest_first_page_by_page(client: Client) -> None:
    for old in listed(client):
        client.delete(f"/v1/files/{old}")
    ids = [upload(client)["id"] for _ in range(5)]
    assert listed(client) == ids[::-1]
    assert listed(client, order="asc") == ids
    assert listed(client, purpose="batch_output") == []
    first = client.get("/v1/files", params={"limit": 2}).json()
    assert [one["id"] for one in first["data"]] == [ids[4], ids[3]]
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, ids[4], ids[3])
    client.delete(f"/v1/files/{ids[3]}")
    assert listed(client, after=ids[3]) == [ids[2], ids[1], ids[0]], "a file that is gone is still a place"
    assert listed(client, after=ids[1], order="asc") == [ids[2], ids[4]]
    last = client.get("/v1/files", params={"after": ids[2], "limit": 2}).json()
    assert last["has_more"] is False
    assert client.get("/v1/files", params={"after": ids[0]}).json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("query", "said"),
    [({"limit": 0}, "limit"), ({"limit": "x"}, "limit"), ({"order": "up"}, "order"), ({"after": "x"}, "'x'")],
)
def test_a_bad_page_is_refused(client: Client, query: dict[str, Any], said: str) -> None:
    assert said in refused(client.get("/v1/files", params=query))


def test_a_key_sees_its_own_files_only(client: Client) -> None:
    mine, theirs = upload(client)["id"], upload(client, headers=THEIRS)["id"]
    assert theirs not in listed(client)
    assert [one["id"] for one in client.get("/v1/files", headers=THEIRS).json()["data"]] == [theirs]
    for path in (mine, f"{mine}/content"):
        refused(client.get(f"/v1/files/{path}", headers=THEIRS), 404)
    refused(client.delete(f"/v1/files/{mine}", headers=THEIRS), 404)
    assert mine in listed(client)


@pytest.mark.parametrize(
    "file_id",
    ["x", "file-", "..", "%2e%2e", "..%2F..%2Flock", "file-" + "0" * 39 + "%00", "file-" + "A" * 40],
)
def test_what_is_no_id_is_not_found(client: Client, file_id: str) -> None:
    assert client.get(f"/v1/files/{file_id}/content").status_code == 404


_BOUNDARY = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"files": {"file": ("a", b"x")}}, "'purpose'"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "fine-tune"}}, "'fine-tune'"),
        ({"files": {"other": ("a", b"x")}, "data": {"purpose": "batch"}}, "'file'"),
        ({"files": [("file", ("a", b"x")), ("file", ("b", b"y"))], "data": {"purpose": "batch"}}, "two"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "x" * 20_000}}, "fields of a form"),
        ({"files": {"file": ("a", b"x")}, "data": {str(i): "" for i in range(40)}}, "32 parts"),
        ({"json": {"purpose": "batch"}}, "'application/json'"),
        ({"content": b"abc"}, "multipart/form-data"),
        ({"content": b"abc", "headers": {"Content-Type": "multipart/form-data"}}, "multipart/form-data"),
        (
            {"content": b"abc", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
            "cannot be read",
        ),
        ({"content": b"", "headers": {"Content-Type": "multipart/form-data; boundary=x"}}, "last boundary"),
    ],
)
def test_what_is_no_form_with_one_file_is_refused(
    client: Client, data_dir: Path, sent: dict[str, Any], said: str
) -> None:
    assert said in refused(client.post("/v1/files", **sent))
    assert list((data_dir / "files" / "partial").iterdir()) == []


def test_a_body_that_says_it_is_too_large_is_not_read(client: Client) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=30) as raw:
        raw.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer mine\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 400000000\r\n\r\n"
        )
        assert raw.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_nothing_is_left_of_a_file_whose_client_leaves(client: Client, data_dir: Path) -> None:
    partial = data_dir / "files" / "partial"
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=30) as raw:
        raw.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer mine\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 9999\r\n\r\n"
            b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc'
        )
        while not list(partial.iterdir()):
            listed(client)
    for _ in range(1000):
        listed(client)
        if not list(partial.iterdir()):
            return
    raise AssertionError("it stays")


def test_a_file_that_stops_coming_is_refused(
    client: Client, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "_PART_SECONDS", 0.1)
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=30) as raw:
        raw.sendall(
            b"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer mine\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 9999\r\n\r\n"
            b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc'
        )
        assert b"each part of the body must come within 0.1 s" in received_until(raw, b"}}")
    assert not list((data_dir / "files" / "partial").iterdir())


# -- forms -----------------------------------------------------------------------------------------

_FORM = (
    b'--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n'
    b"Content-Type: text/plain\r\n\r\nline\r\n--xy\r\n--xyz--\r\n"
)


def parsed(form: bytes, piece: int) -> tuple[UploadForm, bytes]:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(form), piece):
            yield form[start : start + piece]

    content = bytearray()
    found = UploadForm("multipart/form-data; boundary=xyz", content.extend)
    reading = found.read(pieces())
    with pytest.raises(StopIteration):  # nothing in it waits
        reading.send(None)
    return found, bytes(content)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
def test_a_form_is_the_same_in_any_pieces(piece: int) -> None:
    found, content = parsed(_FORM, piece)
    assert (found.fields, found.filename, content) == ({"purpose": "batch"}, "a.jsonl", b"line\r\n--xy")


def test_a_form_that_is_cut_anywhere_is_refused() -> None:
    for end in range(len(_FORM) - len(b"--\r\n")):
        with pytest.raises(InvalidRequest):
            parsed(_FORM[:end], 1000)


def test_headers_of_a_form_are_bounded() -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be read|headers of a form"):
        parsed(b"--xyz\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n", 1000)


# -- on disk ---------------------------------------------------------------------------------------


def kept(store: FileStore, content: bytes = b"abc", tenant: str = TENANT) -> StoredFile:
    with store.upload(tenant) as coming:
        coming.write(content)
        return store.keep(coming, tenant, "name", "batch")


def test_a_file_larger_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path, most_bytes=10)
    kept(store, b"x" * 10)
    with pytest.raises(BodyTooLarge, match="10 bytes"):
        kept(store, b"x" * 11)
    assert len(store.page(TENANT, limit=9).items) == 1
    assert list((tmp_path / "partial").iterdir()) == []


def test_the_number_of_files_is_bounded_for_each_tenant(tmp_path: Path) -> None:
    store = FileStore(tmp_path, most_files=2)
    first = kept(store)
    kept(store)
    with pytest.raises(InvalidRequest, match="2 files"):
        kept(store)
    kept(store, tenant="")
    store.delete(TENANT, first.id)
    kept(store)


def test_uploads_at_a_time_are_bounded_for_each_tenant(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with ExitStack() as uploads:
        for _ in range(MOST_COMING):
            uploads.enter_context(store.upload(TENANT))
        with pytest.raises(Busy, match="are being uploaded"):
            kept(store)
        kept(store, tenant="")
    kept(store)


def test_a_store_that_is_opened_again_has_whole_files_and_no_parts(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    file = kept(store)
    with store.upload(TENANT) as coming:
        coming.write(b"half")
        again = FileStore(tmp_path)  # as after a kill
        assert list((tmp_path / "partial").iterdir()) == []
    assert again.page(TENANT, limit=9).items == (file,)
    assert again.content(TENANT, file.id).read_bytes() == b"abc"


def test_an_id_names_one_file_of_one_tenant(tmp_path: Path) -> None:
    store = FileStore(tmp_path, now_ns=lambda: 1_700_000_000_500_000_000)
    ids = {kept(store).id for _ in range(20)}
    assert len(ids) == 20, "also in the same moment"
    assert store.get(TENANT, min(ids)).created_at == 1_700_000_000
    for tenant in ("", "f" * 32):
        with pytest.raises(NotFound):
            store.get(tenant, min(ids))


def test_results_are_adopted_once(tmp_path: Path) -> None:
    store, source = FileStore(tmp_path / "files"), tmp_path / "source"
    source.write_bytes(b"results")
    file_id = store.new_id()
    assert store.adopt(TENANT, file_id, source, "out") == store.adopt(TENANT, file_id, source, "out")
    source.unlink()
    assert store.content(TENANT, file_id).read_bytes() == b"results"
    assert store.page(TENANT, limit=9, purpose="batch_output").items == (store.get(TENANT, file_id),)


def test_one_server_at_a_time_has_a_folder(tmp_path: Path) -> None:
    first = open_data(str(tmp_path / "new" / "folder"))
    assert first is not None
    with pytest.raises(InvalidConfig, match="another server"):
        open_data(str(tmp_path / "new" / "folder"))
    first.close()
    again = open_data(str(tmp_path / "new" / "folder"))
    assert again is not None
    again.close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (str(tmp_path / "file"), str(tmp_path / "file" / "below"), "nul\0"):
        with pytest.raises(InvalidConfig, match="data_dir"):
            open_data(path)
