"""How a decode step of ours grows, and how far it is from what the machine could do.

One thing changes at a time: how much is shared, how many rows, how large the pool. Peers show no steps, so
none takes part. Steps in which every row decodes are counted and no others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from field import label
from peers.base import ChildPeer
from rows_generate import Setting
from workloads import Ids, shared_stem, unique_prompts, with_tails

STEPS = 12


def growth(setting: Setting, *, quick: bool) -> None:
    """Milliseconds of a decode step over shared length, batch and pool size."""
    lengths = (0, 96) if quick else (0, 256, 512, 1024, 2048, 4096)
    batches = (1, 3) if quick else (1, 2, 4, 8, 16, 32, 64)
    pools = (64 << 20, 256 << 20) if quick else (128 << 20, 512 << 20, 2 << 30, 4 << 30)
    rows, shared = setting.sizes.at_once, setting.sizes.shared
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for contender in _ours(setting):
        with setting.field.turn(contender):
            found = curves.setdefault(label(contender), {})
            found["shared tokens, 16 rows"] = [
                (length, _step(setting, contender, rows, length)) for length in lengths
            ]
            found["rows, nothing shared"] = [
                (batch, _step(setting, contender, batch, 0)) for batch in batches
            ]
            found["rows, long shared prefix"] = [
                (batch, _step(setting, contender, batch, shared)) for batch in batches
            ]
            found["pool in MiB, 16 rows"] = [
                (pool >> 20, _with_pool(setting, contender, pool, rows, shared)) for pool in pools
            ]
            contender.reload()
    setting.field.report.keep("growth of a decode step, milliseconds", curves=curves)
    for name, found in curves.items():
        for what, points in found.items():
            text = ", ".join(f"{x:,}: {y:.1f}" for x, y in points)
            setting.field.report.note(f"decode step of {name} in ms over {what}", text)


def roofline(setting: Setting, *, quick: bool) -> None:
    """The decode step over the floor of the machine, for 1, 16 and 64 rows."""
    field, floor = setting.field, setting.roofline
    if floor is None:
        return
    for contender in _ours(setting):
        for rows in (1, 3) if quick else (1, 16, 64):
            for shared in (0, setting.sizes.shared):
                with field.turn(contender):
                    found = _step(setting, contender, rows, shared) / 1000
                least = floor.step(rows, shared, setting.sizes.private + STEPS / 2, contender.row)
                name = f"decode step of {label(contender)}, {rows} rows, {shared:,} shared, over the floor"
                text = f"{found / least:.2f} x ({1000 * found:.1f} over {1000 * least:.1f} ms; aim 1.5 x)"
                field.report.note(name, text, found / least)


def _ours(setting: Setting) -> list[ChildPeer]:
    return [
        contender
        for contender in setting.field.there
        if isinstance(contender, ChildPeer) and contender.name == "ours"
    ]


def _with_pool(setting: Setting, contender: ChildPeer, kv_memory: int, rows: int, shared: int) -> float:
    contender.reload(kv_memory=kv_memory)
    return _step(setting, contender, rows, shared)


def _step(setting: Setting, contender: ChildPeer, rows: int, shared: int) -> float:
    """Median milliseconds of a step."""
    prompts: list[Ids] = unique_prompts(setting.encode, rows, setting.sizes.private, seed=rows)
    if shared:
        stem = shared_stem(setting.encode, shared, 500)
        prompts = with_tails(setting.encode, stem, rows, private=setting.sizes.private, seed=rows)
    contender.ask("flush")
    seconds: Sequence[float] = contender.ask("decode_step", prompts=prompts, steps=STEPS)["seconds"]
    return 1000 * statistics.median(seconds)
