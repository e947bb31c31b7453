"""The counters of a link: the network counts copies, the oracle checks the sum (S18)."""


class LinkCounters:
    """Numbers of copies on a link, by the fate of the copy."""

    __slots__ = ("added", "changed", "dropped", "in_flight", "intact", "mislabelled", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.added = 0
        self.dropped = 0
        self.intact = 0
        self.changed = 0
        self.in_flight = 0
        self.mislabelled = 0

    def balance(self) -> int:
        """Return the number of unaccounted copies; 0 on an honest link."""
        return self.sent + self.added - self.intact - self.changed - self.dropped - self.in_flight
