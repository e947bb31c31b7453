"""The common code of the asyncio API (aio.py) and the API for threads (blocking.py).

- ``base``: properties, receipts and requests; ``deprecated``: names of 0.1.
- ``session``: the operations of a member, as steps; each API runs the steps in its way of waiting.
- ``join_options``: from the options of ``join`` to a handle; ``timeouts``: durations of callers.
- ``inbox``: messages, events and requests between the handle and the application.
- ``message``, ``headers``, ``rpc``: messages, headers, requests and replies.
- ``public_events``, ``member_names``, ``snapshot``: events, names and snapshots for people.
- ``sink_dedup``: rows published twice by a sink are read once.
"""
