"""A member that reports when it is in a view with all others, and reads until its end."""

import json
import sys
from contextlib import suppress

from gapless import blocking

options = json.loads(sys.argv[1])
count = options.pop("count")
with blocking.join("tests", **options) as group:
    group.wait_for_members(count)
    print("ready", flush=True)
    while True:
        with suppress(TimeoutError):
            group.receive(timeout=60)
