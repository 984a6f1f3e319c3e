"""The radix tree over paged KV memory: pages, tree, leases, eviction, replay. Integers only."""
