"""Attacks of a member that lies, on real members: they work with keys alone, not with identities.

The liar is a member of the view: it has the keys, and in a group with identities an identity of its
own. The checks that prevent each attack are taken out one by one in
tests/protocol/membership/test_lying_members.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gapless.identity import Address, RosterEntry
from gapless.wire.frames import Alive, Join, Leave, Suspect
from tests.support.insiders import InsiderScene, insider_scene
from tests.support.strangers import until

pytestmark = pytest.mark.xdist_group("lying members")

UNBELIEVED = ("unsigned", "signature", "identity", "unbacked", "name")
"""Why a member drops what the liar sends."""


@dataclass(frozen=True)
class Attack:
    """What the liar sends, whom it strikes, and how to see that the attack has worked."""

    name: str
    strike: Callable[[InsiderScene], None]
    at: str
    """The member that gets the datagrams."""
    worked: Callable[[InsiderScene, dict[str, Address]], Any]

    def __repr__(self) -> str:
        return self.name


def bert_is_out(found: InsiderScene, before: dict[str, Address]) -> bool:
    return before["bert"] not in found.members("anna")


def suspect(found: InsiderScene) -> None:
    """The liar asks the coordinator to expel bert, and suspects it once in each other's name."""
    frame = Suspect(found.insider.me, (found.address("bert"),), True)
    found.insider.send(found["anna"], frame)
    witness = found.address("store")
    found.insider.send(found["anna"], frame._replace(origin=witness), sender=witness)


def leave(found: InsiderScene) -> None:
    victim = found.address("bert")
    found.insider.send(found["anna"], Leave(victim), sender=victim)


def report_expulsion(found: InsiderScene) -> None:
    """ALIVE(EXPELLED) to bert: in the liar's own name, and in the coordinator's."""
    view = found["bert"].view
    assert view is not None
    newer = view.id._replace(number=view.id.number + 1)
    for sender in (found.insider.me, view.coordinator):
        frame = Alive(sender, newer, False, False, True)
        found.insider.send(found["bert"], frame, sender=sender, addressed=True)


def bert_is_another(found: InsiderScene, before: dict[str, Address]) -> bool:
    return found["bert"].me not in {None, before["bert"]}


def join_as_store(found: InsiderScene) -> None:
    """A newer incarnation of the live collector, at the liar's socket."""
    holder = found.address("store")
    entry = RosterEntry(Address(holder.node, holder.incarnation + 1), "store", b"")
    found.insider.send(found["anna"], Join(entry), sender=entry.address)
    for ahead in (1, 2, 3):
        view = found["anna"].view
        assert view is not None
        confirmed = view.id._replace(number=view.id.number + ahead)
        found.insider.send(
            found["anna"], Alive(entry.address, confirmed, True), sender=entry.address
        )


def store_is_replaced(found: InsiderScene, before: dict[str, Address]) -> bool:
    """Repeat the attack until the collector's place is taken."""
    if before["store"] in found.members("anna"):
        join_as_store(found)
        return False
    return True


def forge_view(found: InsiderScene) -> None:
    """A view in the coordinator's name that leaves out bert, at the collector."""
    entries = [found.entry(name) for name in ("anna", "store", "liar")]
    maker = found.address("anna")
    frame = found.insider.view(found.view_number + 1, entries, maker)
    found.insider.send(found["store"], frame, sender=maker)


def store_is_misled(found: InsiderScene, before: dict[str, Address]) -> bool:
    return before["bert"] not in found.members("store")


ATTACKS = (
    Attack("expel with SUSPECT", suspect, "anna", bert_is_out),
    Attack("expel with LEAVE", leave, "anna", bert_is_out),
    Attack("expel with ALIVE", report_expulsion, "bert", bert_is_another),
    Attack("take a name", join_as_store, "anna", store_is_replaced),
    Attack("forge a view", forge_view, "store", store_is_misled),
)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_a_lying_member_succeeds_with_keys_alone(attack: Attack) -> None:
    with insider_scene(identities=False) as found:
        before = {name: found.address(name) for name in found.groups}
        attack.strike(found)
        until(lambda: attack.worked(found, before), attack.name)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_a_lying_member_fails_in_a_group_with_identities(attack: Attack) -> None:
    with insider_scene(identities=True) as found:
        before = {name: found.address(name) for name in found.groups}
        count = found.dropped(attack.at, *UNBELIEVED)
        attack.strike(found)
        until(lambda: found.dropped(attack.at, *UNBELIEVED) > count, "the lie is dropped")
        found.check_undisturbed("anna", "bert", "store")
        assert {name: found.address(name) for name in found.groups} == before


def test_a_lying_coordinator_leaves_out_nobody_but_itself() -> None:
    """The liar is made the oldest member; its signed view without bert moves only the liar."""
    with insider_scene(identities=True) as found:
        found["anna"].leave()
        until(lambda: len(found.members("liar")) == 3, "the coordinator has left")
        entries = [found.entry(name) for name in ("liar", "store")]
        assert found.insider.guard is not None
        number = found["bert"].view.id.number  # type: ignore[union-attr]
        found.insider.guard._view_number = number
        found.insider.send(found["store"], found.insider.view(number + 1, entries))
        until(lambda: found.dropped("store", "unbacked", "forged view"), "the view is dropped")
        assert found.address("bert") in found.members("store")
        found.check_undisturbed("bert", "store")
