"""The paged KV cache: blocks, prefix keys, events."""
