"""What a Python process of Spark imports: there are many, and each waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pyspark_gapless.runtime.package_zip import package_root


def imported_by(program: str) -> set[str]:
    """Return the modules of this project that a program brings with it."""
    ask = "import sys; print(*(name for name in sys.modules if 'gapless' in name))"
    command = [sys.executable, "-c", f"{program}; {ask}"]
    environ = {"PYTHONPATH": str(package_root())}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def of_package(modules: set[str], *packages: str) -> list[str]:
    return sorted(
        name for name in modules if name.split(".")[1:2] and name.split(".")[1] in packages
    )


def test_a_process_that_reads_brings_no_member_of_a_group() -> None:
    found = imported_by("import pyspark_gapless.datasource")
    assert {"pyspark_gapless.source.stream_reader", "gapless.spool.reader"} <= found
    assert of_package(found, "sim", "transport", "runtime", "discovery", "blocking") == []


@pytest.mark.parametrize(
    "program", ["import gapless.blocking", "import gapless.aio", "import gapless.spool.collector"]
)
def test_a_member_brings_no_simulator(program: str) -> None:
    found = imported_by(program)
    assert "gapless.transport.udp" in found
    assert of_package(found, "sim") == []


@pytest.mark.parametrize("program", ["import gapless.blocking", "import gapless.aio"])
def test_a_member_brings_nothing_that_few_members_need(program: str) -> None:
    found = imported_by(program)
    assert of_package(found, "trace", "metrics") == []
    assert not found & {
        "gapless.transport.tcp.transport",
        "gapless.transport.in_process",
        "gapless.group.health",
    }


def test_faults_on_a_real_network_are_there_when_asked_for() -> None:
    assert "gapless.faults.faults" in imported_by(
        "from gapless.faults.faulty_transport import FaultyTransport"
    )
