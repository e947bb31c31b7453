"""``gapless report``: what it takes, what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gapless.cli.app import run
from gapless.cli.data import report as command
from pyspark_gapless.sweep.cell import SweepCell, code_digest
from pyspark_gapless.sweep.report_input import figures as sweep_figures
from pyspark_gapless.sweep.results import SweepResults
from pyspark_gapless.sweep.schema import arrow_schema
from pyspark_gapless.sweep.task import SweepRun, run_row
from tests.report import cases


def written(path: Path, figures: object) -> Path:
    path.write_text(json.dumps(figures), encoding="utf-8")
    return path


def test_a_file_of_figures_becomes_a_page_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "calm.json", cases.alone())
    assert run(["report", str(path)]) == 0
    page = (tmp_path / "calm.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>alone · All 16 checks passed</title>" in page
    out, err = capsys.readouterr()
    assert "All 16 checks passed" in out
    assert f"page: {tmp_path / 'calm.html'}\n" in out
    assert not err


def test_a_folder_with_figures_gets_its_page(tmp_path: Path) -> None:
    written(tmp_path / "figures.json", cases.nothing())
    assert run(["report", str(tmp_path), "--title", "what <b>I</b> saw"]) == 0
    assert (
        '<h1><bdi class="name">what &lt;b&gt;I&lt;/b&gt; saw</bdi></h1>'
        in (tmp_path / "report.html").read_text()
    )


def test_output_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = cases.crowd(2, points=3)
    path = written(tmp_path / "figures.json", figures)
    assert run(["report", str(path), "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()
    assert not (tmp_path / "figures.html").exists()
    capsys.readouterr()
    assert run(["report", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == figures, "what is printed is a PATH again"


def test_violations_are_exit_code_1(tmp_path: Path) -> None:
    for name, figures in {
        "run": cases.crowd(2, violations=3, points=3),
        "sweep": cases.sweep(failed=2),
    }.items():
        path = written(tmp_path / f"{name}.json", figures)
        assert run(["report", str(path)]) == 1
        assert (tmp_path / f"{name}.html").exists()


def test_what_gapless_sweep_prints_is_taken_too(tmp_path: Path) -> None:
    printed = {key: value for key, value in cases.sweep().items() if key not in {"kind", "title"}}
    assert run(["report", str(written(tmp_path / "sweep.json", printed))]) == 0
    assert "Report of a sweep" in (tmp_path / "sweep.html").read_text()


def test_titles_are_not_markup_on_the_screen_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "figures.json", {**cases.nothing(), "title": "[red]x[/red]"})
    assert run(["report", str(path)]) == 0
    assert "[red]x[/red]" in capsys.readouterr().out


WRONG = {
    "nothing there": (None, "no such file or folder"),
    "no JSON": (b"{", "expected figures as JSON"),
    "not text": (b"\xff\xfe\x00", "expected figures as JSON"),
    "far too deep": (b"[" * 100_000, "expected figures as JSON"),
    "a list": (b"[]", "expected a JSON object"),
    "another object": (b'{"a": 1}', "expected the figures of a run or a sweep"),
    "another kind": (b'{"kind": "walk"}', "'walk'"),
    "a wrong type": (b'{"kind": "run", "lives": 3}', "run.lives is 3, but should be a list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = WRONG[name]
    path = tmp_path / "figures.json"
    if content is not None:
        path.write_bytes(content)
    assert run(["report", str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err
    assert err.count("\n") == 1
    assert str(path) in err
    assert not list(tmp_path.glob("*.html"))


def test_a_folder_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").touch()
    assert run(["report", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    for word in ("lives.jsonl", "runs/*.parquet", "figures.json"):
        assert word in err


def test_a_file_that_is_far_too_large_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MAX_BYTES", 5)
    assert run(["report", str(written(tmp_path / "figures.json", cases.nothing()))]) == 2
    assert "larger than 5 B" in capsys.readouterr().err


# A real sweep, small


def swept(folder: Path, cells: list[SweepCell], seeds: range, code: str) -> None:
    import pyarrow as pa

    results = SweepResults(folder)
    with results.locked():
        results.add(
            pa.Table.from_pylist(
                [run_row(SweepRun(cell, seed), code) for cell in cells for seed in seeds],
                arrow_schema(),
            )
        )


def test_a_sweep_is_read_from_its_folder_alone(tmp_path: Path) -> None:
    knobs = (("capacity", "64"), ("xmit_interval", "100ms"))
    cells = [
        SweepCell("grid", profile, 3, 5, loss, 50, 1_000_000, knobs if profile == "nakack" else ())
        for profile in ("nakack4", "nakack")
        for loss in (0.0, 10.0)
    ]
    swept(tmp_path, cells[:1], range(1), "older code")
    swept(tmp_path, cells, range(2), code_digest())
    found = sweep_figures(tmp_path)
    assert (found["runs"], found["missing"], found["failed"], found["other_runs"]) == (8, 0, 0, 1)
    assert {(cell["profile"], cell["loss"], cell["runs"]) for cell in found["cells"]} == {
        (profile, loss, 2) for profile in ("nakack4", "nakack") for loss in (0.0, 10.0)
    }
    assert all(cell["delivered"] == cell["expected"] == 2 * 3 * 5 * 2 for cell in found["cells"])
    assert run(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "No violation in 8\N{NO-BREAK SPACE}runs" in page
    assert "Not counted: 1\N{NO-BREAK SPACE}run of other code in the same folder." in page


def test_a_hunt_with_a_planted_bug_shows_how_to_repeat_it(tmp_path: Path) -> None:
    bug = "ceiling+1"
    swept(tmp_path, [SweepCell("told", None, None, 20, mutant=bug)], range(2), code_digest())
    found = sweep_figures(tmp_path)
    assert found["failed"], "the seeds show the bug"
    assert found["hunts"][0]["groups"] == "told"
    assert f'--mutant "{bug}"' in found["failures"][0]["replay"]
    assert run(["report", str(tmp_path)]) == 1


def test_a_folder_with_broken_results_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x.parquet").write_bytes(b"nothing")
    assert run(["report", str(tmp_path)]) == 2
    assert "x.parquet is not a result file of a sweep" in capsys.readouterr().err
