"""What the asyncio face (channel.py) and the face for threads (blocking.py) have in common.

joining.py    options of ``join`` -> a Handle inbox.py      what comes out of the handle, sorted:
messages and events in one order, requests, answers core.py       what a caller can do, as steps
that either face carries out in its own way of waiting message.py    what a reader gets requests.py
requests and answers inside messages to one member insight.py    health, statistics, and who holds
what up timing.py     durations as a caller gives them base.py       what both faces show in the
same way
"""
