"""A durable name in use: ``join`` says by whom, at once, in both APIs and on the command line."""

from __future__ import annotations

import asyncio

import pytest

import gapless
from gapless import blocking
from gapless.errors import NameInUseError
from gapless.transport import InProcessNetwork
from tests.support.commands import command_group

SLOW = {"found_after": "30s", "join_interval": "100ms"}
"""A joiner without an answer would wait for half a minute, and then found a group of its own."""
QUICK = {**SLOW, "found_after": "50ms"}


def test_threads_are_told_who_has_the_name() -> None:
    network = InProcessNetwork()
    with blocking.join("names", transport=network.open(), durable_name="till", config=QUICK) as one:
        second = blocking.join(
            "names", transport=network.open(), durable_name="till", config=SLOW, timeout=20
        )
        with pytest.raises(NameInUseError) as error:
            second.open()
        assert error.value.holder == one.me
        assert one.me is not None
        assert str(error.value) == (
            "the durable name 'till' is in use in names by the member at 127.0.0.1:1 "
            f"({one.me.short}): choose another durable name, or stop that member"
        )
        assert one.view is not None
        assert len(one.view.members) == 1
    with blocking.join("names", transport=network.open(), durable_name="till", config=QUICK):
        pass  # the name is free again


def test_tasks_are_told_who_has_the_name() -> None:
    async def main() -> None:
        network = InProcessNetwork()
        async with gapless.join(
            "names", transport=network.open(), durable_name="till", config=QUICK
        ) as one:
            with pytest.raises(NameInUseError, match="'till' is in use in names") as error:
                async with gapless.join(
                    "names", transport=network.open(), durable_name="till", config=SLOW, timeout=20
                ):
                    pass
            assert error.value.holder == one.me

    asyncio.run(main())


def test_a_command_is_told_who_has_the_name() -> None:
    with command_group(2) as group:
        first = group.start("listen", "--durable-name", "till", "--timeout", "60")
        first.next_line("Ctrl-C", "stderr")
        second = group.start("listen", "--durable-name", "till", "--timeout", "60")
        code, out, err = second.end()
        assert (code, out) == (2, b"")
        assert "the durable name 'till' is in use in" in err
        assert "Traceback" not in err
