"""Places for tests of discovery."""

from gapless.discovery.source import BackgroundSource
from gapless.identity import Address, RosterEntry
from gapless.locator import Locator


def at(text: str, node: int = 1, incarnation: int = 1) -> RosterEntry:
    """Return the announcement of a member with the locator ``text``."""
    return RosterEntry(Address(node, incarnation), "", Locator.parse(text).encode())


def texts(locators: list[Locator]) -> list[str]:
    """Return locators as text."""
    return [str(locator) for locator in locators]


def crash(source: BackgroundSource) -> None:
    """End a source's thread as a crash would: nothing is taken back."""
    with source._changed:
        source._closed = True
        source._changed.notify_all()


def announced(source: BackgroundSource, place: RosterEntry) -> None:
    """Announce a locator, and wait for exactly the round that this starts."""
    source.announce(place)
    settled(source)


def settled(source: BackgroundSource) -> None:
    """Wait until a source is not at work, without asking it to look."""
    with source._changed:
        assert source._changed.wait_for(lambda: source._done == source._wanted, 10)
