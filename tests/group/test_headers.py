"""Headers: what is said of a message beside its payload."""

import pytest
from hypothesis import given, strategies as st

from gapless.errors import PayloadError
from gapless.group.headers import (
    MARK,
    PLAIN,
    REPLY,
    REQUEST,
    SNAPSHOT_REQUEST,
    WITH_HEADERS,
    WRAP_BYTES,
    attach_headers,
    detach_headers,
    may_contain_wrapped,
    wrap,
    wrap_all,
)
from gapless.identity import Address
from gapless.run import Run

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: len(name.encode()) <= 255)
PAYLOADS = st.binary(max_size=40) | st.binary(max_size=30).map(lambda rest: MARK + rest)


@given(PAYLOADS, st.dictionaries(NAMES, st.binary(max_size=300), max_size=5))
def test_what_is_joined_is_split_again(payload: bytes, headers: dict[str, bytes]) -> None:
    assert detach_headers(attach_headers(payload, headers)) == (headers, payload)


@given(PAYLOADS)
def test_a_payload_that_looks_wrapped_is_itself(payload: bytes) -> None:
    tricky = attach_headers(attach_headers(payload, {"a": b"b"}), {})
    assert detach_headers(tricky) == ({}, attach_headers(payload, {"a": b"b"}))


@given(st.binary(max_size=60), st.integers(0, 2**64 - 1), st.integers(0, 255))
def test_whatever_stands_behind_a_mark_is_taken_or_left(
    body: bytes, number: int, kind: int
) -> None:
    message = wrap(kind, number, body)
    headers, payload = detach_headers(message)
    if kind == PLAIN:
        assert (headers, payload) == ({}, body)
    elif kind != WITH_HEADERS or not headers:
        assert payload in {message, body[number:]}


@pytest.mark.parametrize("kind", [REQUEST, REPLY, SNAPSHOT_REQUEST])
def test_what_is_no_message_of_the_application_is_left_alone(kind: int) -> None:
    message = wrap(kind, 7, b"body")
    assert detach_headers(message) == ({}, message)


@pytest.mark.parametrize(
    "block",
    [b"\x05ab", b"\x01a\xff\xff\xff\xff", b"\x01a\x02\x00\x00\x00x", b"\x01\xff\x00\x00\x00\x00"],
)
def test_a_broken_block_leaves_the_message_as_it_is(block: bytes) -> None:
    message = wrap(WITH_HEADERS, len(block), block + b"payload")
    assert detach_headers(message) == ({}, message)
    assert detach_headers(message[: len(MARK) + 3]) == ({}, message[: len(MARK) + 3])


def test_that_no_message_is_wrapped_is_seen_at_once() -> None:
    assert not may_contain_wrapped(b"plain" * 1000)
    assert may_contain_wrapped(b"plain" + attach_headers(b"x", {"a": b""}))
    assert may_contain_wrapped(memoryview(attach_headers(b"x", {"a": b""})))


@given(
    st.lists(
        PAYLOADS | st.binary(min_size=16, max_size=16).map(lambda rest: MARK + rest),
        min_size=1,
        max_size=8,
    )
)
def test_a_wrapped_message_is_found_among_others(payloads: list[bytes]) -> None:
    run = Run.of(Address(1, 1), 1, payloads)
    wrapped = any(message.startswith(MARK) and len(message) >= WRAP_BYTES for message in payloads)
    assert may_contain_wrapped(run.payload, run.lengths) or not wrapped


@pytest.mark.parametrize("at", range(5))
def test_a_wrapped_message_is_found_among_others_as_long_as_it(at: int) -> None:
    payloads = [b"a message of 20 bytes" for _ in range(5)]
    run = Run.of(Address(1, 1), 1, payloads)
    assert not may_contain_wrapped(run.payload.replace(b"bytes", MARK + b"!"), run.lengths)
    payloads[at] = attach_headers(b"", {"a": b"bc"})
    assert len(payloads[at]) == 21
    run = Run.of(Address(1, 1), 1, payloads)
    assert may_contain_wrapped(run.payload, run.lengths)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([("a", b"b")], "expected a mapping of names to bytes"),
        ({"": b""}, "expected a name of 1 to 255 bytes"),
        ({"é" * 128: b""}, "expected a name of 1 to 255 bytes"),
        ({5: b""}, "expected a name of 1 to 255 bytes"),
        ({"a": "text"}, "header 'a' is str; expected bytes"),
    ],
)
def test_headers_that_cannot_be_sent(headers: object, words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        attach_headers(b"", headers)  # type: ignore[arg-type]


@given(
    st.lists(
        st.binary(max_size=8) | st.binary(max_size=8).map(lambda rest: MARK + rest), min_size=1
    )
)
def test_messages_are_wrapped_where_they_could_be_mistaken_and_nowhere_else(
    messages: list[bytes],
) -> None:
    found = wrap_all(messages)
    assert [detach_headers(message) for message in found] == [({}, message) for message in messages]
    same = [before == after for before, after in zip(messages, found, strict=True)]
    assert same == [not message.startswith(MARK) for message in messages]
