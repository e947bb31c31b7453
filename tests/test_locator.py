import socket
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given, strategies as st

from gapless.errors import ConfigError, RemoteProtocolError
from gapless.identity import MAX_LOCATOR_BYTES
from gapless.locator import Locator
from tests.support.multicast import need_ipv6


def usable(ip: IPv4Address | IPv6Address) -> bool:
    mapped = isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None
    return not (
        ip.is_unspecified or ip.is_multicast or mapped or ip == IPv4Address("255.255.255.255")
    )


ADDRESSES = st.ip_addresses().filter(usable)
PORTS = st.integers(1, 65535)
LINK_LOCAL = st.integers(0, 2**64 - 1).map(lambda low: IPv6Address((0xFE80 << 112) + low))


@given(st.builds(lambda ip, port: Locator(ip.packed, port), ADDRESSES, PORTS))
def test_bytes_and_text_lead_back(locator: Locator) -> None:
    assert Locator.decode(locator.encode()) == locator
    assert Locator.parse(str(locator)) == locator
    assert len(locator.encode()) <= MAX_LOCATOR_BYTES


@given(LINK_LOCAL, PORTS, st.integers(0, 2**32 - 1))
def test_a_scope_travels_along(ip: IPv6Address, port: int, scope: int) -> None:
    locator = Locator(ip.packed, port, scope)
    assert Locator.decode(locator.encode()) == locator
    assert Locator.parse(str(locator)) == locator
    assert Locator.from_sockaddr(locator.sockaddr) == locator


@given(
    st.binary(max_size=70)
    | st.binary(min_size=6, max_size=6).map(lambda rest: b"\4" + rest)
    | st.binary(min_size=22, max_size=22).map(lambda rest: b"\6" + rest)
)
def test_any_bytes_are_a_locator_or_refused(data: bytes) -> None:
    try:
        locator = Locator.decode(data)
    except RemoteProtocolError as error:
        assert error.reason == "locator"  # noqa: PT017 - the other way out is right too
    else:
        assert locator.encode() == data


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("192.0.2.1:7800", b"\x04\xc0\x00\x02\x01\x78\x1e"),
        ("[2001:db8::1]:1", b"\x06\x20\x01\x0d\xb8" + bytes(11) + b"\x01\x01\x00" + bytes(4)),
        ("[fe80::1%2]:256", b"\x06\xfe\x80" + bytes(13) + b"\x01\x00\x01\x02\x00\x00\x00"),
    ],
)
def test_the_layout_stays(text: str, encoded: bytes) -> None:
    assert Locator.parse(text).encode() == encoded
    assert str(Locator.decode(encoded)) == text


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "0 bytes of family none"),
        (b"\x05\xc0\x00\x02\x01\x78\x1e", "7 bytes of family 5"),
        (b"\x04\xc0\x00\x02\x01\x78\x1e\x00", "8 bytes of family 4"),
        (b"\x06\xc0\x00\x02\x01\x78\x1e", "7 bytes of family 6"),
        (b"\x04\xc0\x00\x02\x01\x00\x00", "port 0"),
        (b"\x04\x00\x00\x00\x00\x78\x1e", "0.0.0.0 is not the address of one member"),
        (b"\x04\xef\xff\x00\x01\x78\x1e", "239.255.0.1 is not the address of one member"),
        (b"\x04\xff\xff\xff\xff\x78\x1e", "255.255.255.255 is not the address of one member"),
        (b"\x06" + bytes(10) + b"\xff\xff\xc0\x00\x02\x01\x01\x00" + bytes(4), "write 192.0.2.1"),
        (b"\x06\x20\x01\x0d\xb8" + bytes(11) + b"\x01\x01\x00\x02\x00\x00\x00", "not link-local"),
    ],
)
def test_what_is_no_place_of_a_member_is_refused(data: bytes, detail: str) -> None:
    with pytest.raises(RemoteProtocolError, match=detail):
        Locator.decode(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7800",
        "192.0.2.1",
        "192.0.2.1:",
        "192.0.2.1:99999",
        "192.0.2.1:0",
        "192.0.2.1:-1",
        "192.0.2.1:\uff11",
        "192.0.2.256:1",
        "0.0.0.0:1",
        "a:7800",
        "::1:7800",
        "[::1]",
        "[192.0.2.1:7800",
        "[fe80::1%]:7800",
        "[::1%1]:7800",
    ],
)
def test_text_that_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Locator.parse(text)


def test_text_that_names_no_place_gets_a_helpful_answer() -> None:
    with pytest.raises(
        ConfigError, match=r"expected an address and a port such as 192\.0\.2\.1:7800"
    ):
        Locator.parse("nowhere:7800")
    with pytest.raises(ConfigError, match=r"no interface 'nolink7'; the interfaces are .*\blo\b"):
        Locator.parse("[fe80::1%nolink7]:7800")


def test_an_interface_may_be_named() -> None:
    index, name = socket.if_nameindex()[0]
    assert Locator.parse(f"[fe80::1%{name}]:7800") == Locator.parse(f"[fe80::1%{index}]:7800")


def test_an_address_has_one_form() -> None:
    assert Locator.of("::ffff:192.0.2.1", 7800) == Locator.parse("192.0.2.1:7800")
    assert Locator.of("2001:DB8:0::1", 7800) == Locator.of("2001:db8::1", 7800)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_socket_is_reached_at_its_locator(family: socket.AddressFamily, host: str) -> None:
    if family == socket.AF_INET6:
        need_ipv6()
    with socket.socket(family, socket.SOCK_DGRAM) as receiver:
        receiver.bind((host, 0))
        receiver.settimeout(5)
        locator = Locator.decode(Locator.from_sockaddr(receiver.getsockname()).encode())
        with socket.socket(locator.family, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"here", locator.sockaddr)
        data, source = receiver.recvfrom(10)
        assert data == b"here"
        assert Locator.from_sockaddr(source).ip == locator.ip
