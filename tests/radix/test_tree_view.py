"""What people see of the tree: sizes and hits, bounded, with parents, and without names or tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixlm.radix.cache import PrefixCache
from radixlm.radix.lease import Lease
from radixlm.radix.node import Namespace
from radixlm.radix.tree_view import NodeView, TreeView


def keep(cache: PrefixCache, tokens: Sequence[int], namespace: Namespace = ()) -> None:
    """Run a prompt to its end: everything of it is cached afterwards."""
    cache.release(running(cache, tokens, namespace))


def running(cache: PrefixCache, tokens: Sequence[int], namespace: Namespace = ()) -> Lease:
    lease = cache.acquire(tokens, namespace, len(tokens))
    assert lease is not None
    cache.take_copies()
    cache.settle()
    cache.publish(lease, tokens, len(tokens))
    return lease


def children(view: TreeView, parent: int | None) -> list[NodeView]:
    return [node for node in view.nodes if node.parent == parent]


def test_an_empty_cache_has_no_nodes() -> None:
    view = PrefixCache(8, 4).view(10)
    assert (view.nodes, view.total_nodes, view.left_out, view.clock) == ((), 0, 0, 0)
    assert (view.num_pages, view.free_pages, view.cached_pages, view.leased_pages) == (8, 8, 0, 0)
    assert view.page_size == 4


def test_a_view_has_every_run_under_its_parent_with_its_own_tokens_and_pages() -> None:
    cache = PrefixCache(16, 4)
    keep(cache, [1] * 8 + [2] * 6)
    keep(cache, [1] * 8 + [3] * 4)
    view = cache.view(10)
    [root] = children(view, None)
    [shared] = children(view, root.id)
    ends = children(view, shared.id)
    assert (root.tokens, root.pages, root.hits) == (0, 0, 0)
    assert (shared.tokens, shared.pages) == (8, 2)
    assert sorted((node.tokens, node.pages) for node in ends) == [(4, 1), (6, 2)]
    assert (view.total_nodes, view.left_out, view.cached_pages) == (4, 0, 5)
    assert {node.tier for node in view.nodes} == {"device"}


def test_hits_count_what_acquires_found_on_the_whole_path() -> None:
    cache = PrefixCache(16, 4)
    keep(cache, [1] * 8 + [2] * 4)
    for end in (3, 4, 5):
        keep(cache, [1] * 8 + [end] * 4)
    keep(cache, [1] * 8 + [3] * 4)
    view = cache.view(10)
    [shared] = children(view, children(view, None)[0].id)
    assert shared.hits == 4
    assert sorted(node.hits for node in children(view, shared.id)) == [0, 0, 0, 1]


def test_both_parts_of_a_split_run_keep_the_hits_it_had() -> None:
    cache = PrefixCache(16, 4)
    keep(cache, [1] * 8)
    keep(cache, [1] * 8)
    keep(cache, [1] * 4 + [2] * 4)
    view = cache.view(10)
    [upper] = children(view, children(view, None)[0].id)
    assert upper.hits == 2
    assert sorted(node.hits for node in children(view, upper.id)) == [0, 1]


def test_a_page_that_is_copied_from_and_one_that_is_only_visited_are_hit_too() -> None:
    cache = PrefixCache(16, 4)
    keep(cache, [1, 2, 3, 4])
    keep(cache, [1, 2, 9])
    assert max(node.hits for node in cache.view(10).nodes) == 1
    cache.visit([1, 2, 3, 4, 5], ())
    assert max(node.hits for node in cache.view(10).nodes) == 2


def test_peeks_refused_acquires_and_views_hit_nothing() -> None:
    cache = PrefixCache(4, 4)
    held = running(cache, [1] * 8)
    before = cache.view(10)
    cache.peek([1] * 8, ())
    assert cache.acquire([1] * 8 + [2] * 12, (), 20) is None
    assert cache.view(10) == before
    cache.release(held)


def test_pins_and_ages_are_those_of_the_moment() -> None:
    cache = PrefixCache(16, 4)
    keep(cache, [2] * 4)
    held = [running(cache, [1] * 4 + [end] * 4) for end in (5, 6)]
    by_pins = {node.pins: node for node in cache.view(10).nodes if node.pages == 1}
    assert set(by_pins) == {0, 1, 2}
    assert by_pins[2].hits == 1
    for lease in held:
        cache.release(lease)
    view = cache.view(10)
    assert all(node.pins == 0 for node in view.nodes)
    assert max(node.last_used for node in view.nodes) == view.clock


def test_namespaces_are_numbers_in_the_order_of_their_age() -> None:
    cache = PrefixCache(16, 4)
    for name in ("zebra", "secret"):
        keep(cache, [1] * 4, (name, ""))
    view = cache.view(10)
    by_age = sorted(children(view, None), key=lambda root: root.id)
    assert [root.namespace for root in by_age] == [0, 1]
    kinds = {type(getattr(node, name)) for node in view.nodes for name in NodeView.__slots__}
    assert kinds == {int, str, type(None)}
    assert "secret" not in repr(view)


def test_a_root_without_children_is_shown_while_it_is_in_use() -> None:
    cache = PrefixCache(8, 4)
    lease = cache.acquire([1] * 4, (), 4)
    assert lease is not None
    [root] = cache.view(5).nodes
    assert (root.parent, root.pins, root.tokens) == (None, 1, 0)
    cache.release(lease)
    assert cache.view(5).nodes == ()


def test_a_bounded_view_shows_what_was_used_last_and_what_is_largest() -> None:
    cache = PrefixCache(200, 4)
    keep(cache, [7] * 80)
    for end in range(1, 41):
        keep(cache, [8] * 4 + [100 + end] * 4)
    view = cache.view(8)
    assert (len(view.nodes), view.total_nodes, view.left_out) == (8, 43, 35)
    assert max(node.tokens for node in view.nodes) == 80, "the oldest is the largest"
    newest = sorted(node.last_used for node in cache.view(100).nodes)[-1]
    assert newest in {node.last_used for node in view.nodes}


def test_what_is_in_use_comes_before_what_was_used_later() -> None:
    cache = PrefixCache(100, 4)
    held = running(cache, [1] * 4)
    for end in range(2, 22):
        keep(cache, [end] * 4)
    assert 1 in {node.pins for node in cache.view(6).nodes if node.parent is not None}
    cache.release(held)


@pytest.mark.parametrize("most", range(1, 9))
def test_every_parent_is_there_and_stands_before_its_children(most: int) -> None:
    cache = PrefixCache(100, 2)
    for namespace in ((), ("a",), ("b",)):
        for tokens in ([1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 4, 4], [1, 1, 5, 5], [6, 6]):
            keep(cache, tokens, namespace)
    view = cache.view(most)
    assert len(view.nodes) == most
    assert view.left_out == view.total_nodes - most
    seen: set[int | None] = {None}
    for node in view.nodes:
        assert node.parent in seen
        assert node.id not in seen
        seen.add(node.id)


def test_ids_outlive_what_happens_around_them() -> None:
    cache = PrefixCache(16, 4)
    keep(cache, [1] * 8)
    before = {node.id for node in cache.view(10).nodes}
    keep(cache, [1] * 4 + [2] * 4)
    assert before < {node.id for node in cache.view(10).nodes}


def test_a_view_of_no_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="most_nodes must be at least 1, got 0"):
        PrefixCache(4, 4).view(0)
