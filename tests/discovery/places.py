"""Places for tests of discovery."""

from gapless.identity import Address, Place
from gapless.locator import Locator


def at(text: str, node: int = 1, incarnation: int = 1) -> Place:
    """Return the place of a member that is reached at ``text``."""
    return Place(Address(node, incarnation), "", Locator.parse(text).encode())


def texts(locators: list[Locator]) -> list[str]:
    """Return locators as text."""
    return [str(locator) for locator in locators]
