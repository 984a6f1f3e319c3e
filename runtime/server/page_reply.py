"""What the page is told, as plain data: the tree, and the state of the server.

Counts are of everybody's work, ids of one tenant's only, and there is no text. Knows no HTTP.
"""

from __future__ import annotations

from time import monotonic

from ...radix.tree_view import TreeView
from .context import ServerContext

_MOST_LISTED = 100


def tree_body(view: TreeView) -> dict[str, object]:
    """Parents before their children; `last_used` and `clock` count requests that ended."""
    nodes = [
        {
            "id": node.id,
            "parent": node.parent,
            "namespace": node.namespace,
            "tokens": node.tokens,
            "pages": node.pages,
            "hits": node.hits,
            "last_used": node.last_used,
            "pins": node.pins,
            "tier": node.tier,
        }
        for node in view.nodes
    ]
    return {
        "nodes": nodes,
        "total_nodes": view.total_nodes,
        "left_out": view.left_out,
        "clock": view.clock,
        "page_size": view.page_size,
        "num_pages": view.num_pages,
        "free_pages": view.free_pages,
        "cached_pages": view.cached_pages,
        "leased_pages": view.leased_pages,
    }


def status_body(context: ServerContext, tenant: str) -> dict[str, object]:
    """Tokens are totals since the start; `time` is in seconds of a clock that only goes forward. Pages are
    `used` by what runs, or `cached` and in nobody's use; `saved` are those that would be used more if nothing
    was shared."""
    service = context.service
    stats, info = service.engine.snapshot(), service.engine.info
    waiting = service.waiting
    listed = [
        {
            "key": job.key,
            "id": job.id,
            "waits": job.waits,
            "age": round(job.age, 3),
            "prompt_tokens": job.prompt_tokens,
            "cached_tokens": job.cached_tokens,
            "completion_tokens": job.completion_tokens,
        }
        for job in service.under_way(tenant, _MOST_LISTED)
    ]
    return {
        "model": context.model,
        "problem": service.unready(),
        "time": monotonic(),
        "engine": {
            "family": info.family,
            "parameters": info.parameters,
            "dtype": info.dtype,
            "quantization": info.quantization,
            "attention": info.attention,
            "threads": info.threads,
            "page_size": info.page_size,
            "max_length": service.engine.max_length,
        },
        "requests": {
            "running": waiting.active - waiting.requests,
            "waiting": waiting.requests,
            "listed": listed,
        },
        "pages": {
            "total": stats.num_pages,
            "used": stats.num_pages - stats.free_pages - stats.evictable_pages,
            "cached": stats.evictable_pages,
            "saved": stats.saved_pages,
        },
        "tokens": {
            "prompt": stats.prompt_tokens,
            "cached": stats.cached_tokens,
            "generated": stats.generated_tokens,
            "computed": stats.computed_tokens,
        },
        "steps": stats.steps,
        "preemptions": stats.preemptions,
        "evicted_pages": stats.evicted_pages,
    }
