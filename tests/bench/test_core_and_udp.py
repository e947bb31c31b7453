import json

import pytest

from bench import core, udp


def test_the_figures_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert core.main(["--json", "--rounds", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["conditions"]["rounds"] == 1
    assert report["conditions"]["gc"]
    asked = [
        (size, frame, what)
        for size in (100, 1024)
        for frame in (60_000, 1_400)
        for what in core.OPERATIONS
    ]
    assert [
        (line["message_bytes"], line["frame_bytes"], line["operation"])
        for line in report["figures"]
    ] == asked
    for line in report["figures"]:
        assert line["ns_per_message"] > 0
        assert line["ratio"] > 0


def test_the_figures_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert core.main(["--rounds", "1"]) == 0
    table = capsys.readouterr().out
    assert table.count("decode+add+take") == 4
    assert "ns/message" in table
    assert "gc" in table


@pytest.mark.parametrize(
    "options", [["--rounds", "0"], ["--rounds", "many"], ["--jason"], ["--js"], ["surplus"]]
)
def test_a_bad_option_is_one_line_and_status_2(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        core.main(options)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert options[-1] in err


def test_a_group_over_udp_beside_raw_sockets(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        udp.main(["--json", "--rounds", "1", "--seconds", "1", "--members", "2", "--size", "1000"])
        == 0
    )
    (line,) = json.loads(capsys.readouterr().out)["figures"]
    assert (line["members"], line["message_bytes"]) == (2, 1000)
    assert line["messages_per_s"] > 100
    assert line["raw_mb_per_s"] > 0
    assert line["ratio_cpu"] > 0


def test_a_group_over_tcp_beside_raw_streams(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--transport", "tcp", "--profile", "ordered", "--members", "2", "--size", "1000"]
    assert udp.main(["--json", "--rounds", "1", "--seconds", "1", *options]) == 0
    (line,) = json.loads(capsys.readouterr().out)["figures"]
    assert (line["transport"], line["profile"], line["repairs"]) == ("tcp", "ordered", 0)
    assert line["messages_per_s"] > 100
    assert line["raw_mb_per_s"] > 0
