"""Addresses have one written form, and a view is a collection of its members."""

import pytest

from gapless.identity import Address, View, member_label

A, B, C = (Address(node, 1) for node in (0xA, 0xB, 0xC))


def test_an_address_has_one_written_form_everywhere() -> None:
    address = Address(0xC0FFEE, 0x2A)
    assert str(address) == repr(address) == f"{address}" == "c0ffee.2a"
    assert repr([address]) == "[c0ffee.2a]"
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "c0ffee", "x.1", "1.y"])
def test_a_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Address.parse(text)


def test_a_label_has_the_name_beside_the_short_id() -> None:
    address = Address(0x00C0FFEE12345678, 1)
    assert address.short == "00c0ffee"
    assert member_label(address, "collector") == "collector (00c0ffee)"
    assert member_label(address) == "00c0ffee"


def test_a_view_is_a_collection_of_its_members() -> None:
    view = View.of(3, A, B)
    assert len(view) == 2
    assert list(view) == [A, B]
    assert A in view
    assert C not in view
    assert view.coordinator == A
    assert view == View.of(3, A, B)
    assert hash(view) == hash(View.of(3, A, B))
