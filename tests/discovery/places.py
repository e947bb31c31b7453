"""Places for tests of discovery."""

from gapless.discovery.source import Slow
from gapless.identity import Address, Place
from gapless.locator import Locator


def at(text: str, node: int = 1, incarnation: int = 1) -> Place:
    """Return the place of a member that is reached at ``text``."""
    return Place(Address(node, incarnation), "", Locator.parse(text).encode())


def texts(locators: list[Locator]) -> list[str]:
    """Return locators as text."""
    return [str(locator) for locator in locators]


def crash(source: Slow) -> None:
    """End a source's thread as a crash would: nothing is taken back."""
    with source._turn:
        source._closed = True
        source._turn.notify_all()


def announced(source: Slow, place: Place) -> None:
    """Announce a place and wait for the round that this begins, and for no other."""
    source.announce(place)
    settled(source)


def settled(source: Slow) -> None:
    """Wait until a source is not at work, without asking it to look."""
    with source._turn:
        assert source._turn.wait_for(lambda: source._done == source._wanted, 10)
