"""The environment of the peers: separate Python packages and a Java library in ``build/``.

The extra ``peers`` of pyproject.toml lists the packages. An unavailable peer is reported as
missing, with the reason.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers.jgroups import KEYSTORE, KEYTOOL_OPTIONS
from gapless import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "peers"
SERVERS = {"nats": "nats-server", "redis": "redis-server"}
"""Peers with a server, and the name of the server program."""
PACKAGES = {
    "pyzmq": "pyzmq",
    "zenoh": "eclipse-zenoh",
    "cyclonedds": "cyclonedds",
    "nats": "nats-py",
    "redis": "redis",
    "pyre": "zeromq-pyre",
}
MODULES = {"pyzmq": "zmq"}
"""The imported module of a peer, if the name differs."""
OLDEST_JAVA = 17

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>gapless</groupId><artifactId>peers</artifactId><version>1</version><dependencies><dependency>
<groupId>org.jgroups</groupId><artifactId>jgroups</artifactId><version>[5.0.0.Final,6.0.0.Alpha)</version>
</dependency></dependencies></project>
"""

_LOOK = """
import importlib, json, sys
found = {}
for peer, module, package in json.loads(sys.argv[1]):
    try:
        importlib.import_module(module)
        found[peer] = [importlib.import_module("importlib.metadata").version(package), ""]
    except BaseException as error:
        found[peer] = ["", f"{type(error).__name__}: {error}"]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Peer:
    """A library: the version, or the reason of its absence."""

    name: str
    version: str = ""
    reason: str = ""
    server: str = ""
    """The server of the peer, and its version."""


class Environment:
    """The available peers of this machine."""

    def __init__(self, build: Path = BUILD) -> None:
        self.build = build
        self.python = Path(sys.executable)
        self.java = self.jar = ""
        self.classes = build / "classes"
        self.peers: dict[str, Peer] = {
            "gapless": Peer("gapless", __version__),
            "raw": Peer("raw", f"Python {platform.python_version()}"),
        }
        self._servers: dict[str, str] = {}

    def get(
        self, wanted: Sequence[str], say: Callable[[str], None], *, install: bool = True
    ) -> None:
        """Install the requested peers; record the missing peers with reasons."""
        self.build.mkdir(parents=True, exist_ok=True)
        packaged = [peer for peer in wanted if peer in PACKAGES]
        if packaged:
            self._get_packages(packaged, say, install=install)
        if "jgroups" in wanted:
            self.peers["jgroups"] = self._get_jgroups(say, install=install)

    def server(self, peer: str) -> str:
        """Return the path of the server of a peer."""
        return self._servers[peer]

    # Python

    def _get_packages(
        self, wanted: Sequence[str], say: Callable[[str], None], *, install: bool
    ) -> None:
        home = self.build.parent / "peers-env"
        python = home / "bin" / "python"
        refused = self._install(home, python, say, install=install)
        if not python.exists():
            why = "; ".join(refused.values()) or "the environment of the peers was never made"
            for peer in wanted:
                self.peers[peer] = Peer(peer, reason=why)
            return
        self.python = python
        asked = json.dumps([(peer, MODULES.get(peer, peer), PACKAGES[peer]) for peer in wanted])
        looked = _run([str(python), "-c", _LOOK, asked], 120)
        if looked.returncode:
            for peer in wanted:
                self.peers[peer] = Peer(peer, reason=_last(looked.stderr))
            return
        for peer, (version, reason) in json.loads(looked.stdout).items():
            why = reason and refused.get(PACKAGES[peer], reason)
            self.peers[peer] = self._with_server(Peer(peer, version, why), home)

    def _install(
        self, home: Path, python: Path, say: Callable[[str], None], *, install: bool
    ) -> dict[str, str]:
        """Make the environment, if missing; return the unavailable peers with reasons."""
        needs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        wanted: list[str] = needs["project"]["optional-dependencies"]["peers"]
        mark = home / f".ready-{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:16]}"
        if mark.exists():
            known: dict[str, str] = json.loads(mark.read_text(encoding="utf-8"))
            return known
        if not install:
            return {}
        say(f"making an environment with {len(wanted)} packages for the peers")
        made = _run([sys.executable, "-m", "venv", "--clear", str(home)], 300)
        if made.returncode:
            return {"": f"venv: {_last(made.stderr or made.stdout)}"}
        pip = [
            str(python),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "--retries",
            "1",
            "install",
        ]
        refused: dict[str, str] = {}
        if _run([*pip, *wanted], 900).returncode:
            for one in wanted:  # one that cannot be had must not keep the others away
                say(f"installing {one}")
                tried = _run([*pip, one], 600)
                if tried.returncode:
                    refused[re.split(r"[^\w.-]", one)[0]] = f"pip: {_last(tried.stderr)}"
                    say(f"{one} cannot be installed: {_last(tried.stderr)}")
        mark.write_text(json.dumps(refused), encoding="utf-8")
        return refused

    def _with_server(self, peer: Peer, home: Path) -> Peer:
        """Return the peer with its server."""
        if peer.name not in SERVERS or peer.reason:
            return peer
        name = SERVERS[peer.name]
        places = [home / "bin" / name, *home.glob(f"lib/python*/site-packages/*/bin/{name}")]
        found = (
            next((str(place) for place in places if place.exists()), "") or shutil.which(name) or ""
        )
        if not found:
            return Peer(
                peer.name, peer.version, f"there is no {name}, neither from a wheel nor on the path"
            )
        done = _run([found, "--version"], 20)
        if done.returncode:
            return Peer(
                peer.name, peer.version, f"{name} does not run: {_last(done.stderr or done.stdout)}"
            )
        self._servers[peer.name] = found
        words = done.stdout.split()
        version = next(
            (word[2:] for word in words if word.startswith("v=")), words[-1] if words else ""
        )
        return Peer(peer.name, peer.version, server=f"{name} {version.removeprefix('v')}")

    # Java

    def _get_jgroups(self, say: Callable[[str], None], *, install: bool) -> Peer:
        java, javac = shutil.which("java"), shutil.which("javac")
        if not java or not javac:
            return Peer("jgroups", reason="a JDK is needed (java and javac on the path)")
        self.java = java
        folder = self.build / "jgroups"
        if not list(folder.glob("jgroups-*.jar")) and install:
            if not (maven := shutil.which("mvn")):
                return Peer(
                    "jgroups", reason="mvn is not on the path, and no jar was fetched before"
                )
            say("fetching the newest JGroups 5")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "pom.xml").write_text(_POM, encoding="utf-8")
            goal = [
                "dependency:copy-dependencies",
                f"-DoutputDirectory={folder}",
                "-DincludeArtifactIds=jgroups",
            ]
            fetched = _run([maven, "-q", "-B", "-f", str(folder / "pom.xml"), *goal], 600)
            if fetched.returncode:
                return Peer("jgroups", reason=f"mvn: {_last(fetched.stdout)}")
        jars = sorted(folder.glob("jgroups-*.jar"))
        if not jars:
            return Peer("jgroups", reason="the jar is not here")
        self.jar = str(jars[-1])
        source = Path(__file__).parent / "peers" / "jgroups" / "Member.java"
        compiled = _run([javac, "-cp", self.jar, "-d", str(self.classes), str(source)], 120)
        if compiled.returncode:
            return Peer("jgroups", reason=f"javac: {_last(compiled.stderr)}")
        keystore = folder / KEYSTORE
        if not keystore.exists():
            keytool = str(Path(javac).with_name("keytool"))
            made = _run([keytool, *KEYTOOL_OPTIONS, "-keystore", str(keystore)], 120)
            if made.returncode:
                return Peer("jgroups", reason=f"keytool: {_last(made.stdout or made.stderr)}")
        done = _run([java, "-version"], 60).stderr.splitlines()
        version = jars[-1].stem.removeprefix("jgroups-")
        return Peer("jgroups", version, server=done[0] if done else "")


def _run(command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 1, "", f"{command[0]} was not done within {limit_s:.0f} s"
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _last(text: str) -> str:
    """Return the last line with text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "error:" in line]
    return (errors or lines or ["it said nothing"])[0 if errors else -1]


def machine() -> dict[str, object]:
    """Return the properties of the machine that the figures depend on."""
    about: dict[str, object] = {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }
    for name in ("rmem_max", "rmem_default", "wmem_max"):
        try:
            about[f"net.core.{name}"] = int(
                Path(f"/proc/sys/net/core/{name}").read_text(encoding="ascii")
            )
        except OSError:
            continue
    return about


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gb() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return 0.0


def packages() -> dict[str, str]:
    """Return the versions of the packages used by this process."""
    return {"gapless": __version__, "rich": importlib.metadata.version("rich")}
