"""Which contenders a run has: rows of ours, and rows of each peer that was asked for and is installed.

Knows where a peer's parts lie (docs/benchmarks.md says how they get there) and nothing of what is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from peers.base import ChildPeer, Contender
from peers.servers import LlamaCpp, Vllm

from radixlm.runtime.embedded import resolve_model

MODEL = "smollm2-135m"
KV_MEMORY = 1 << 30
OURS: Mapping[str, dict[str, object]] = {"float32": {}, "int8": {"quantization": "int8"}}


class Missing(Exception):
    """A peer that was asked for is not installed; the message says what was looked for."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peers",
        type=_names,
        default=["transformers"],
        metavar="NAME,...",
        help=f"of {', '.join(PEERS)} (default: transformers)",
    )
    home = Path(os.environ.get("PEERS_DIR") or Path.home() / "peers")
    parser.add_argument("--peers-dir", type=Path, default=home, help="where peers are (default: ~/peers)")
    for name, what in (
        ("vllm-python", "the Python that has vLLM (default: vllm/bin/python there)"),
        ("vllm-model", "the model as a float32 Hugging Face folder (default: smollm2-hf there)"),
        ("openvino-python", "the Python that has openvino-genai (default: openvino/bin/python there)"),
        ("llama-server", "llama.cpp's server (default: the first bin/llama-server there)"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help=what)


def ours(row: str, options: argparse.Namespace, logs: Path, **engine: object) -> ChildPeer:
    """A row of ours; `engine` are options of the engine beside those of the row."""
    return ChildPeer(
        "ours",
        row,
        python=Path(sys.executable),
        script="ours_child.py",
        log=logs / f"ours-{row}.log",
        options={
            "threads": options.threads,
            "options": {"kv_memory": KV_MEMORY, **OURS[row], **engine},
        },
        exact=row == "float32",
        reuses=True,
        scores=True,
    )


def peer_rows(name: str, options: argparse.Namespace, logs: Path) -> list[Contender]:
    """The rows of one peer. Raises Missing."""
    return PEERS[name](options, logs)


def _transformers(options: argparse.Namespace, logs: Path) -> list[Contender]:
    return _transformers_rows(options, logs, {"float32": False})


def _transformers_continuous(options: argparse.Namespace, logs: Path) -> list[Contender]:
    return _transformers_rows(options, logs, {"float32 continuous": True})


def _transformers_rows(options: argparse.Namespace, logs: Path, rows: Mapping[str, bool]) -> list[Contender]:
    return [
        ChildPeer(
            "transformers",
            row,
            python=Path(sys.executable),
            script="transformers_child.py",
            log=logs / f"transformers-{i}.log",
            options={
                "model": str(resolve_model(MODEL)),
                "threads": options.threads,
                "continuous": continuous,
            },
            environment={"OMP_NUM_THREADS": str(options.threads)},
            exact=True,
            reuses=continuous,
            scores=not continuous,
        )
        for i, (row, continuous) in enumerate(rows.items())
    ]


def _vllm(options: argparse.Namespace, logs: Path) -> list[Contender]:
    python = _found(options.vllm_python or options.peers_dir / "vllm" / "bin" / "python")
    model = _found(options.vllm_model or options.peers_dir / "smollm2-hf")
    return [Vllm(python, model, logs / "vllm.log", options.threads)]


def _openvino(options: argparse.Namespace, logs: Path) -> list[Contender]:
    python = _found(options.openvino_python or options.peers_dir / "openvino" / "bin" / "python")
    rows: Mapping[str, Mapping[str, str]] = {"default": {}, "accuracy": {"EXECUTION_MODE_HINT": "ACCURACY"}}
    return [
        ChildPeer(
            "openvino",
            row,
            python=python,
            script="openvino_child.py",
            log=logs / f"openvino-{row}.log",
            options={
                "model": str(resolve_model(MODEL)),
                "threads": options.threads,
                "properties": properties,
                "cache_gb": 2,
                "chunk": 512,
            },
            exact=row == "accuracy",
            reuses=True,
            scores=True,
        )
        for row, properties in rows.items()
    ]


def _llamacpp(options: argparse.Namespace, logs: Path) -> list[Contender]:
    asked: Path | None = options.llama_server
    folder: Path = options.peers_dir
    program = asked or next(iter(sorted(folder.glob("**/bin/llama-server"))), folder / "**/bin/llama-server")
    return [LlamaCpp(_found(program), resolve_model(MODEL), logs / "llamacpp.log", options.threads)]


def _found(path: Path) -> Path:
    if not path.exists():
        raise Missing(f"there is no {path.name} where it was looked for; see docs/benchmarks.md")
    return path


def _names(text: str) -> list[str]:
    names = [name for name in text.replace(" ", ",").split(",") if name]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown peer {unknown[0]!r}, allowed are {', '.join(PEERS)}")
    return names


PEERS: Mapping[str, Callable[[argparse.Namespace, Path], Sequence[Contender]]] = {
    "transformers": _transformers,
    "transformers-continuous": _transformers_continuous,
    "vllm": _vllm,
    "openvino": _openvino,
    "llamacpp": _llamacpp,
}
