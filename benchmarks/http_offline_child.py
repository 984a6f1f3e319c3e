"""Ours without a server, behind the pipe of the peers: a whole batch of texts through `Engine.generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from engine_runs import fixed_length
from peers.child import serve
from peers.ours_child import Ours


class Offline(Ours):
    def texts(self, prompts: list[str], max_tokens: int) -> dict[str, object]:
        """Seconds of the batch from an empty cache, and its texts."""
        engine = self._engine()
        engine.flush()
        start = perf_counter()
        done = engine.generate(prompts, fixed_length(max_tokens))
        seconds = perf_counter() - start
        failed = [completion.error for completion in done if completion.error is not None]
        assert not failed, f"every prompt is continued, got {failed[:1]}"
        return {
            "seconds": seconds,
            "texts": [completion.text for completion in done],
            "prompt_tokens": [completion.prompt_tokens for completion in done],
        }


if __name__ == "__main__":
    offline = Offline()
    serve({"load": offline.load, "texts": offline.texts})
