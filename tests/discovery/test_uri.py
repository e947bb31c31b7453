import re

import pytest

from gapless.discovery import (
    Directory,
    Discovery,
    Dns,
    Multicast,
    Seeds,
    SharedFile,
    default_group,
    parse_sources,
)
from gapless.errors import ConfigError
from tests.support.announcements import texts


def parse(text: str) -> Discovery:
    return Discovery.parse(text, group="orders")


def test_every_kind_at_once() -> None:
    found = parse(
        "multicast://239.1.2.3:7001?interface=127.0.0.1&ttl=3,"
        " seeds://192.0.2.1:7800,[::1]:7800-7802 ,"
        "dns://orders.internal:7800?rest=1s,dir:///shared/a%2Cb%3F, file:///shared/orders.json?refresh=1s&stale=5s"
    )
    assert [type(source) for source in found.sources] == [
        Multicast,
        Seeds,
        Dns,
        Directory,
        SharedFile,
    ]
    assert [source.name for source in found.sources] == [
        "multicast://239.1.2.3:7001?interface=127.0.0.1",
        "seeds://192.0.2.1:7800,[::1]:7800-7802",
        "dns://orders.internal:7800",
        "dir:///shared/a,b?",
        "file:///shared/orders.json",
    ]
    (multicast,) = found.multicasts
    assert (multicast.interface, multicast.ttl) == ("127.0.0.1", 3)
    assert texts(found.sources[1].locate(0)) == [
        "192.0.2.1:7800",
        "[::1]:7800",
        "[::1]:7801",
        "[::1]:7802",
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("multicast://", f"multicast://{default_group('orders')}:7799"),
        ("multicast://:7001", f"multicast://{default_group('orders')}:7001"),
        ("multicast://?ttl=0", f"multicast://{default_group('orders')}:7799"),
        ("multicast://?family=6", f"multicast://[{default_group('orders', 6)}]:7799"),
        ("multicast://[ff15::1:2]", "multicast://[ff15::1:2]:7799"),
        ("SEEDS://a:1,b.example:2-3", "seeds://a:1,b.example:2-3"),
        ("dns://a.b.:7800", "dns://a.b.:7800"),
        ("dir:///a//b/", "dir:///a/b"),
    ],
)
def test_short_forms(text: str, name: str) -> None:
    (source,) = parse_sources(text, group="orders")
    assert source.name == name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "an empty item before, after or between commas; expected sources such as seeds://"),
        ("seeds://a:1,,b:1", "empty item before, after or between commas"),
        ("seeds://a:1,", "empty item before, after or between commas"),
        (
            "a:7800",
            (
                "'a:7800' is not a discovery URL; expected one of multicast://, seeds://, dns://,"
                " dir://, file://, as in"
            ),
        ),
        (
            "seed://a:1",
            "unknown source seed:// in 'seed://a:1'; did you mean seeds://? expected one of multicast://",
        ),
        ("http://a:1", "unknown source http://"),
        (
            "dns://a:1,b:1",
            "'b:1' follows a source that takes no further item; start a source",
        ),
        ("dir:///a,b", "write %2C for a comma in a path"),
        ("seeds://a:1?rest=1s,b:1", "'b:1' follows a source that takes no further item"),
        (
            "seeds://",
            "seeds://: '' is not a valid seed (host:port): expected host:port or host:first-last",
        ),
        (
            "seeds://a",
            "seeds://a: 'a' is not a valid seed (host:port): expected host:port or host:first-last",
        ),
        ("seeds://a:1-", "is not a valid seed"),
        (
            "seeds://a:2-1",
            "has no valid ports: expected numbers from 1 to 65535, the lower one first",
        ),
        ("seeds://a:0", "has no valid ports"),
        ("seeds://a:1-70000", "has no valid ports"),
        (
            "seeds://a:1-1025",
            "has 1025 ports, and each gets a datagram with every join request; use at most 1024",
        ),
        ("seeds://::1:7800", "is not a valid seed"),
        ("seeds://[a]:1", "'a' is not an IP address"),
        ("seeds://1.2.3:1", "'1.2.3' is not an IP address"),
        ("seeds://0.0.0.0:1", "use a unicast address that other members can reach"),
        ("seeds://239.1.1.1:1", "is not the address of one member"),
        ("seeds://a b:1", "'a b' is neither an IP address nor a host name"),
        ("seeds://-a:1", "neither an IP address nor a host name"),
        ("seeds://a..b:1", "neither an IP address nor a host name"),
        (f"seeds://{'a' * 64}:1", "neither an IP address nor a host name"),
        (
            "dns://192.0.2.1:7800",
            "is an IP address, not a name; write seeds://192.0.2.1:7800",
        ),
        ("dns://a", "is not a valid seed"),
        ("dns://a:1?rest=0s", "rest=0s is out of range; expected 10ms to 24h"),
        ("dns://a:1?rest=5", "rest=5: a duration needs a unit"),
        (
            "dns://a:1?rets=5s",
            "dns:// has no option 'rets'; did you mean rest=? expected one of rest=",
        ),
        ("dns://a:1?rest=1s&rest=2s", "has the option rest twice; omit one"),
        ("dns://a:1?", "'' is not an option of dns://; expected key=value"),
        ("dns://a:1?rest", "'rest' is not an option of dns://; expected key=value"),
        (
            "dir://shared/orders",
            "is not an absolute path; expected three slashes, as in dir:///shared/orders",
        ),
        ("file://", "is not an absolute path; expected three slashes, as in file:///shared/orders"),
        ("file:///", "is not an absolute path"),
        ("dir:///a%00b", "is not an absolute path"),
        ("dir:///100%", "has a % without two hexadecimal digits; write %25"),
        (
            "dir:///a?refresh=10s&stale=15s",
            "stale=15s is too short for refresh=10s; stale must be at least twice",
        ),
        (
            "multicast://192.0.2.1",
            "192.0.2.1 is not a multicast address; expected one in 239.0.0.0/8 or ff00::/8",
        ),
        ("multicast://a:b:c", "is not a multicast group: expected 239.255.1.2:7799"),
        ("multicast://nowhere", "'nowhere' is not an address: expected one such as 239.255.1.2"),
        ("multicast://239.1.1.1:0", "multicast port 0 is not valid"),
        ("multicast://?ttl=256", "ttl 256 is not valid"),
        ("multicast://?ttl=-1", "ttl=-1 is not a number"),
        ("multicast://?family=5", "family=5 is not valid; expected 4 or 6"),
        ("multicast://239.1.1.1?family=6", "omit family= or 239.1.1.1"),
        (
            "multicast://?interface=a%00b",
            "'a\\x00b' is not an interface; expected a name such as eth0",
        ),
        ("multicast://?interface=" + "e" * 16, "is not an interface; expected a name such as eth0"),
        (
            "multicast://[ff15::1]?interface=127.0.0.1",
            "is an IPv4 address, and ff15::1 is IPv6; use the name of the interface",
        ),
        ("multicast://,multicast://", "is given more than once; keep one"),
    ],
)
def test_what_is_wrong_is_said(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        parse(text)


def test_stale_follows_a_long_refresh() -> None:
    (source,) = parse_sources("dir:///a?refresh=1min", group="orders")
    assert isinstance(source, Directory)
    assert source._stale_ns == 10 * source._rest_ns
