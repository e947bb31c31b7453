"""Memory that is used again: large datagrams without page faults.

A run of 256,000 bytes is new memory at the sender and at every receiver, and is released a moment
later. By default glibc gives half a megabyte of released memory back to the system, and the next
run then takes a page fault for every 4 KiB, which costs more than its copies.

glibc keeps more once a large block was released: all blocks up to the size of the largest one so
far come from the heap, which gives back what exceeds twice this size. ``keep_released_memory``
releases one such block. Other allocators, and a glibc with MALLOC_ settings, ignore the hint.
"""

from __future__ import annotations

KEPT_BLOCK_BYTES = 8 << 20
"""Size of the released block; a heap keeps up to twice as much released memory."""


def keep_released_memory() -> None:
    """Let the allocator keep released memory for the next large datagrams; a hint."""
    # The block is never written, so the system provides no page of it.
    bytes(KEPT_BLOCK_BYTES)
