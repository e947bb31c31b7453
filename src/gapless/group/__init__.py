"""What the asyncio API (aio.py) and the API for threads (blocking.py) have in common.

- ``base``: properties, receipts and requests; ``deprecated``: names of 0.1.
- ``session``: the operations of a member, as steps that each API runs in its own way of waiting.
- ``join_options``: from the options of ``join`` to a handle; ``timeouts``: durations of callers.
- ``inbox``: messages, events and requests between the handle and the application.
- ``message``, ``headers``, ``rpc``: messages, their headers, requests and replies.
- ``public_events``, ``member_names``, ``snapshot``: events, names and snapshots for people.
- ``sink_dedup``: rows that a sink has published twice are read once.
"""
