"""Seeded faults: mistakes that engines of this kind were really shipped with, put into the real classes.

Each fault is a context manager that changes one method or function while it is entered. `FAULTS` names them
and says in which world (a property test) each must show. They change no file and know no test: whether the
property tests see them is tests/test_faults.py's to show. What must hold: with none entered, nothing differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels import plan as plans
from radixlm.kernels.cpu_attention import CpuPlan, PlanSlot
from radixlm.kernels.cpu_replay import _Workspace
from radixlm.kernels.plan import Ints
from radixlm.radix import cache as caches
from radixlm.radix.cache import PrefixCache
from radixlm.radix.lease import CopyLedger, Lease, PageCopy
from radixlm.radix.node import Namespace, Node
from radixlm.radix.tree import Match, PrefixTree
from radixlm.radix.views import Peek
from radixlm.runtime import batch as batches
from radixlm.runtime.scheduler import Scheduler
from radixlm.runtime.sequence import Sequence as Tokens
from radixlm.runtime.slot_logprobs import SlotLogprobs
from radixlm.runtime.types import FinishReason, Plan, Row, SequenceKey, SlotValue

World = Literal[
    "cache",
    "copies",
    "namespaces",
    "scheduler",
    "values",
    "plan",
    "merge",
    "attention",
    "batch",
    "bits",
    "replay",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """`seed()` is the context manager; `world` is the property test that must fail while it is entered."""

    world: World
    seed: Callable[[], AbstractContextManager[None]]


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:  # Any: a class or a module
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


# -- tree and cache --------------------------------------------------------------------------------


@contextmanager
def _pins_hold_nothing() -> Iterator[None]:
    """Early free: pinned leaves stay in the eviction order, so pages in use are evicted."""

    def lock(self: PrefixTree, node: Node, priority: int) -> None:
        node.locks += 1
        node.priority = max(node.priority, priority)

    def unlock(self: PrefixTree, node: Node) -> None:
        node.locks -= 1
        node.last_used = self.clock
        if node.locks == 0:
            self._settle(node)

    with _replaced(PrefixTree, "_lock", lock), _replaced(PrefixTree, "_unlock", unlock):
        yield


@contextmanager
def _release_gives_back_shared_pages() -> Iterator[None]:
    """Early free: a release frees the pages that the tree keeps, and others read."""
    release = PrefixCache.release

    def all_of_them(self: PrefixCache, lease: Lease) -> None:
        pages = lease.pages[: lease.shared]
        release(self, lease)
        for page in pages:
            if page not in self._pool.free_pages:
                self._pool.give((page,))

    with _replaced(PrefixCache, "release", all_of_them):
        yield


@contextmanager
def _duplicates_are_not_repointed() -> Iterator[None]:
    """Wrong re-point: the duplicates of a publish are freed, and the block table goes on naming them."""
    publish = PrefixCache.publish

    def keeps_its_pages(self: PrefixCache, lease: Lease, tokens: Sequence[int], upto: int) -> None:
        before = list(lease.pages)
        publish(self, lease, tokens, upto)
        lease.pages[:] = before

    with _replaced(PrefixCache, "publish", keeps_its_pages):
        yield


@contextmanager
def _duplicates_are_not_freed() -> Iterator[None]:
    """Leak: a publish re-points the lease and forgets the pages it had before."""
    publish = caches.publish

    def keeps_duplicates(tree: PrefixTree, lease: Lease, tokens: Sequence[int], upto: int) -> list[int]:
        publish(tree, lease, tokens, upto)
        return []

    with _replaced(caches, "publish", keeps_duplicates):
        yield


@contextmanager
def _a_match_counts_as_room() -> Iterator[None]:
    """Admission: pages that the match itself is about to pin are counted as pages that can be evicted."""

    def too_much_room(self: PrefixCache, match: Match) -> Peek:
        cached = len(match.pages) * self.page_size + match.slots
        return Peek(cached, self._pool.free + self._tree.evictable, self.page_size, match.source_pins)

    with _replaced(PrefixCache, "_peek", too_much_room):
        yield


@contextmanager
def _copies_stop_a_slot_early() -> Iterator[None]:
    """Copy-on-write carries over one slot too few."""
    record = CopyLedger.record

    def shorter(self: CopyLedger, copy: PageCopy, source: Node) -> None:
        record(self, replace(copy, slots=copy.slots - 1), source)

    with _replaced(CopyLedger, "record", shorter):
        yield


@contextmanager
def _copies_read_the_page_before() -> Iterator[None]:
    """Copy-on-write reads the page before the one in which the prefix ends."""
    record = CopyLedger.record

    def page_before(self: CopyLedger, copy: PageCopy, source: Node) -> None:
        before = source.parent.pages if source.parent is not None else []
        record(self, replace(copy, source=before[-1]) if before else copy, source)

    with _replaced(CopyLedger, "record", page_before):
        yield


@contextmanager
def _copies_settle_when_taken() -> Iterator[None]:
    """The source of a copy may be evicted as soon as the copy is handed out, before it is made."""
    take = PrefixCache.take_copies

    def settles_too(self: PrefixCache) -> tuple[PageCopy, ...]:
        copies = take(self)
        self.settle()
        return copies

    with _replaced(PrefixCache, "take_copies", settles_too):
        yield


@contextmanager
def _namespaces_are(key: Callable[[Namespace], Namespace]) -> Iterator[None]:
    find, root = PrefixTree.find, PrefixTree.root

    def find_by(self: PrefixTree, tokens: Sequence[int], namespace: Namespace) -> Match:
        return find(self, tokens, key(namespace))

    def root_of(self: PrefixTree, namespace: Namespace) -> Node:
        return root(self, key(namespace))

    with _replaced(PrefixTree, "find", find_by), _replaced(PrefixTree, "root", root_of):
        yield


def _namespaces_are_ignored() -> AbstractContextManager[None]:
    """Every salt and adapter has the same root."""
    return _namespaces_are(lambda namespace: ())


def _namespaces_are_joined() -> AbstractContextManager[None]:
    """("a", "bc") and ("ab", "c") have the same root."""
    return _namespaces_are(lambda namespace: ("".join(namespace),))


# -- scheduler and sequence ------------------------------------------------------------------------


@contextmanager
def _version_is_not_raised() -> Iterator[None]:
    """Stale page: a publish re-points the lease, but whoever keeps its block table is not told."""
    publish = PrefixCache.publish

    def silently(self: PrefixCache, lease: Lease, tokens: Sequence[int], upto: int) -> None:
        version = lease.version
        publish(self, lease, tokens, upto)
        lease.version = version

    with _replaced(PrefixCache, "publish", silently):
        yield


@contextmanager
def _publish_goes_a_token_too_far() -> Iterator[None]:
    """The token just chosen is published too, although its keys and values are not computed."""

    def with_the_next(self: Scheduler, seq: Tokens) -> None:
        assert seq.lease is not None, "only a running sequence has something to publish"
        room = len(seq.lease.pages) * self._cache.page_size
        self._cache.publish(seq.lease, seq.tokens, min(seq.computed + 1, len(seq.tokens), room))

    with _replaced(Scheduler, "_publish", with_the_next):
        yield


@contextmanager
def _a_failed_step_is_published() -> Iterator[None]:
    """What a step that raised should have computed is left to others."""
    fail = Scheduler.fail

    def publishing(self: Scheduler, seq: Tokens, error: str | None) -> None:
        reason: FinishReason = "abort" if seq.abort_requested else "error"
        self._end(seq, reason, error, publish=True)

    def as_if_it_ran(self: Scheduler, plan: Plan, message: str) -> list[Tokens]:
        for row in plan.rows:
            self._running[row.key].advance(row)
        return fail(self, plan, message)

    with _replaced(Scheduler, "_end_failed", publishing), _replaced(Scheduler, "fail", as_if_it_ran):
        yield


@contextmanager
def _an_abort_frees_pages_at_once() -> Iterator[None]:
    """An abort ends the sequence while a step still computes on its pages."""
    abort = Scheduler.abort

    def at_once(self: Scheduler, key: SequenceKey) -> bool:
        known = abort(self, key)
        self.end_aborted()
        return known

    with _replaced(Scheduler, "abort", at_once):
        yield


@contextmanager
def _preemption_forgets_that_pages_are_lost() -> Iterator[None]:
    """After preemption a sequence takes what it had computed for still there."""
    hold, drop = Tokens.hold, Tokens.drop

    def keeps_count(self: Tokens) -> Lease:
        computed = self.computed
        lease = drop(self)
        self.computed = computed
        return lease

    def goes_on(self: Tokens, lease: Lease) -> None:
        computed = self.computed
        hold(self, lease)
        self.computed = max(computed, self.computed)

    with _replaced(Tokens, "drop", keeps_count), _replaced(Tokens, "hold", goes_on):
        yield


@contextmanager
def _writing_starts_a_slot_late() -> Iterator[None]:
    """The first key and value of every row are not written."""
    row = Tokens.row

    def late(self: Tokens, count: int) -> Row:
        right = row(self, count)
        return replace(right, write_from=min(right.write_from + 1, right.stop))

    with _replaced(Tokens, "row", late):
        yield


# -- plan and batch --------------------------------------------------------------------------------


@contextmanager
def _causal_offset_is_one_more() -> Iterator[None]:
    """Off by one: each query also sees the position after its own."""
    segments = plans._segments

    def one_more(rows: plans._Rows, options: plans.PlanOptions) -> plans._Segments:
        right = segments(rows, options)
        return replace(right, causal=right.causal + (right.causal >= 0))

    with _replaced(plans, "_segments", one_more):
        yield


@contextmanager
def _causal_offset_is_one_less() -> Iterator[None]:
    """Off by one: no query after the first sees its own position."""
    segments = plans._segments

    def one_less(rows: plans._Rows, options: plans.PlanOptions) -> plans._Segments:
        right = segments(rows, options)
        return replace(right, causal=right.causal - (right.causal > 0))

    with _replaced(plans, "_segments", one_less):
        yield


@contextmanager
def _shared_runs_are_too_long() -> Iterator[None]:
    """Rows that share pages are taken to share the next ones as well."""
    shared_pages = plans._Rows.shared_pages

    def one_more(self: plans._Rows, at_a_time: int) -> list[int]:
        shared = shared_pages(self, at_a_time)
        whole = [(min(a, b) - 1) // self.page_size for a, b in pairwise(self.stops.tolist())]
        most = [pages // at_a_time * at_a_time for pages in whole]  # each tail keeps a token
        return [max(n, min(n + at_a_time, limit)) for n, limit in zip(shared, most, strict=True)]

    with _replaced(plans._Rows, "shared_pages", one_more):
        yield


@contextmanager
def _shared_runs_end_at_any_page() -> Iterator[None]:
    """What rows share ends inside a block of keys, so that their sums are cut elsewhere than alone."""
    shared_pages = plans._Rows.shared_pages

    def unaligned(self: plans._Rows, at_a_time: int) -> list[int]:
        return shared_pages(self, min(at_a_time, 1))

    with _replaced(plans._Rows, "shared_pages", unaligned):
        yield


@contextmanager
def _long_chunks_are_cut_at_their_first_page() -> Iterator[None]:
    """The blocks of a long chunk begin where its queries do, those of a single token at position 0."""
    segments = plans._segments

    def cut(rows: plans._Rows, options: plans.PlanOptions) -> plans._Segments:
        right, size = segments(rows, options), rows.page_size
        columns = (right.query_start, right.query_count, right.kv_start, right.kv_tokens, right.causal)
        found: list[tuple[int, ...]] = []
        for start, count, low, tokens, causal, page in zip(*columns, right.page_start[:-1], strict=True):
            whole = causal // size if count >= 8 else 0
            if whole > 0:
                found.append((start, count, low, whole * size, -1, page))
                low, tokens, causal = low + whole * size, tokens - whole * size, causal - whole * size
                page += whole
            found.append((start, count, low, tokens, causal, page))
        *parts, pages = np.array(found, dtype=np.int32).reshape(-1, 6).T
        return plans._Segments(*parts, np.append(pages, right.page_start[-1:]), right.pages)

    with _replaced(plans, "_segments", cut):
        yield


@contextmanager
def _a_partial_is_left_out() -> Iterator[None]:
    """A query that has several partials is merged without its last one."""
    merge_table = plans._merge_table

    def without_last(*columns: Any) -> Ints:  # Any: passed on as they come
        table = merge_table(*columns)
        if len(table) > 1:
            table[-1] = -1
        return table

    with _replaced(plans, "_merge_table", without_last):
        yield


@contextmanager
def _logits_go_to_rows_as_they_came() -> Iterator[None]:
    """A token is sampled from another sequence's logits: rows are reordered, their logits are not."""
    inputs = batches._inputs

    def unordered(rows: Sequence[Row], *rest: Any) -> Any:  # Any: passed on as they come
        right, spans = inputs(rows, *rest)
        owners = sorted((span.row for span in spans), key=lambda row: row.key)
        return right, tuple(replace(span, row=row) for span, row in zip(spans, owners, strict=True))

    with _replaced(batches, "_inputs", unordered):
        yield


# -- replay ----------------------------------------------------------------------------------------


@contextmanager
def _a_replay_reads_the_plan_of_its_recording() -> Iterator[None]:
    """Stale plan: later steps of a shape attend to the pages of the first one."""
    change = PlanSlot.set
    first: dict[int, CpuPlan] = {}

    def keeps(self: PlanSlot, plan: CpuPlan) -> None:
        change(self, first.setdefault(id(self), plan))

    with _replaced(PlanSlot, "set", keeps):
        yield


@contextmanager
def _memory_is_handed_out_while_it_is_in_use() -> Iterator[None]:
    """Early free: everything that a recorded pass computes lies in the same place."""
    take = _Workspace.take

    def from_the_start(self: _Workspace, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self.begin()
        return take(self, shape, dtype)

    with _replaced(_Workspace, "take", from_the_start):
        yield


# -- values beside slots ---------------------------------------------------------------------------


@contextmanager
def _taken_pages_keep_their_values() -> Iterator[None]:
    """Stale value: a page that gets a new life still answers for the tokens it held before."""

    def nothing(self: SlotLogprobs, pages: Iterable[int], start: int = 0) -> None: ...

    with _replaced(SlotLogprobs, "clear", nothing):
        yield


@contextmanager
def _copies_carry_a_value_too_many() -> Iterator[None]:
    """Copy-on-write carries over the value of the first slot that does not match."""
    copy = SlotLogprobs.copy

    def one_more(self: SlotLogprobs, source: int, target: int, slots: int) -> None:
        copy(self, source, target, slots + 1)

    with _replaced(SlotLogprobs, "copy", one_more):
        yield


@contextmanager
def _values_lie_a_slot_early() -> Iterator[None]:
    """Off by one: a value lies beside the slot at whose position it arose, not beside its own token's."""
    put = SlotLogprobs.put

    def early(self: SlotLogprobs, pages: Sequence[int], start: int, values: Sequence[SlotValue]) -> None:
        put(self, pages, max(0, start - 1), values)

    with _replaced(SlotLogprobs, "put", early):
        yield


@contextmanager
def _replays_ask_for_known_logits_again() -> Iterator[None]:
    """After preemption a sequence has forgotten which of its logits were seen."""
    drop = Tokens.drop

    def forgets(self: Tokens) -> Lease:
        self.logits_needed_from = min(self.logits_needed_from, self.first_value - 1)
        return drop(self)

    with _replaced(Tokens, "drop", forgets):
        yield


FAULTS: dict[str, Fault] = {
    "early free: pins hold nothing": Fault("cache", _pins_hold_nothing),
    "early free: a release gives back shared pages": Fault("cache", _release_gives_back_shared_pages),
    "wrong re-point: freed duplicates stay in the table": Fault("scheduler", _duplicates_are_not_repointed),
    "leak: duplicates are not freed": Fault("scheduler", _duplicates_are_not_freed),
    "room: pages of the match are counted": Fault("scheduler", _a_match_counts_as_room),
    "copy: a slot too few": Fault("scheduler", _copies_stop_a_slot_early),
    "copy: from the page before": Fault("scheduler", _copies_read_the_page_before),
    "copy: settled when taken": Fault("copies", _copies_settle_when_taken),
    "namespace: ignored": Fault("scheduler", _namespaces_are_ignored),
    "namespace: joined": Fault("namespaces", _namespaces_are_joined),
    "stale page: the version is not raised": Fault("scheduler", _version_is_not_raised),
    "publish: a token too far": Fault("scheduler", _publish_goes_a_token_too_far),
    "publish: of a failed step": Fault("scheduler", _a_failed_step_is_published),
    "abort: frees the pages of a step in flight": Fault("scheduler", _an_abort_frees_pages_at_once),
    "preemption: lost pages are forgotten": Fault("scheduler", _preemption_forgets_that_pages_are_lost),
    "write: starts a slot late": Fault("scheduler", _writing_starts_a_slot_late),
    "stale value: a taken page keeps it": Fault("values", _taken_pages_keep_their_values),
    "value: a copy carries one too many": Fault("values", _copies_carry_a_value_too_many),
    "value: a slot early": Fault("values", _values_lie_a_slot_early),
    "preemption: known logits are asked again": Fault("values", _replays_ask_for_known_logits_again),
    "causal offset: one more": Fault("plan", _causal_offset_is_one_more),
    "causal offset: one less": Fault("attention", _causal_offset_is_one_less),
    "shared run: too long": Fault("plan", _shared_runs_are_too_long),
    "alignment: shared runs end at any page": Fault("bits", _shared_runs_end_at_any_page),
    "alignment: long chunks are cut where they begin": Fault(
        "bits", _long_chunks_are_cut_at_their_first_page
    ),
    "replay: the plan of the recording": Fault("replay", _a_replay_reads_the_plan_of_its_recording),
    "replay: memory in use is handed out": Fault("replay", _memory_is_handed_out_while_it_is_in_use),
    "merge: a partial is left out": Fault("merge", _a_partial_is_left_out),
    "logits: another row's": Fault("batch", _logits_go_to_rows_as_they_came),
}
"""By name: what is wrong, and where it must show."""
