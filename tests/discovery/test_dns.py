"""A real name server and the real resolver of the machine, on a network of their own."""

from pathlib import Path

from tests.support.processes import in_namespace


def test_a_name_follows_its_records(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: dns\n")
    setup = " && ".join(
        f"mount --bind {path} /etc/{path.name}" for path in sorted(tmp_path.iterdir())
    )
    answer = in_namespace(setup, "inside_dns.py")
    assert answer["first"] == [
        "127.0.0.2:7800",
        "127.0.0.3:7800",
        "[fd00::5]:7800",
        "[fd00::6]:7800",
    ]
    assert answer["while_it_fails"] == answer["first"]
    assert answer["problems_while_it_fails"] == ["lookup"]
    assert answer["later"] == ["127.0.0.3:7800", "127.0.0.4:7800"]
    assert {kind for name, kind in answer["asked"] if name == "orders.internal"} == {"A", "AAAA"}
