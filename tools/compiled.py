"""Compile the protocol and the wire format with mypyc, for wheels and for the tests of that form.

``python tools/compiled.py FOLDER`` copies the sources into a folder, with the libraries beside
them; ``PYTHONPATH=FOLDER`` runs Gapless in the compiled form. An unchanged folder is not built
again.
With ``GAPLESS_COMPILE=1``, ``CompiledWheelHook`` adds the libraries to a wheel. Where no C compiler
works, a wheel is pure Python, and one sentence says so.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from contextlib import chdir, redirect_stdout
from hashlib import sha256
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
COMPILED = ("gapless/protocol", "gapless/wire")
"""The folders whose modules are compiled."""
COMPILE_VARIABLE = "GAPLESS_COMPILE"
"""The environment variable that asks a build of a wheel for the compiled form."""
REQUIREMENTS = ("mypy>=1.13", "setuptools>=69")
"""The packages that a compiled build needs; pip installs them into the environment of the build."""
WHEEL_LEVEL, TEST_LEVEL = 2, 0
"""Optimization: a wheel is compiled in a minute or two, the form for the tests in 20 seconds."""

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_PROBE = "#include <Python.h>\nint main(void) { return Py_IsInitialized(); }\n"
_CFLAGS = ("-fPIC", "-fwrapv", "-fvisibility=hidden", "-fno-sanitize=all", "-w", "-pipe")
_LINK = (
    ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared", "-s")
)


class NoCompilerError(Exception):
    """No C compiler of this machine compiles a program with the headers of Python."""


def compiler() -> list[str]:
    """Return the command of a C compiler that works.

    The candidates are ``CC``, the compilers of the system, and that of the package ``ziglang``.
    """
    candidates = [shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]]
    if find_spec("ziglang") is not None:
        candidates.append([sys.executable, "-m", "ziglang", "cc"])
    for command in candidates:
        if command and shutil.which(command[0]) and _works(command):
            return command
    raise NoCompilerError(
        "no C compiler with the headers of Python was found, so Gapless stays pure Python, with the"
        " same features and less speed (to compile, install gcc and the headers, or the package"
        " ziglang)"
    )


def _works(command: list[str]) -> bool:
    """Return whether the compiler compiles a program that includes the headers of Python."""
    with TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(_PROBE)
        run = [*command, *_CFLAGS, *_include(), "-c", str(source), "-o", f"{folder}/probe.o"]
        return subprocess.run(run, capture_output=True, check=False).returncode == 0


def _include() -> list[str]:
    paths = sysconfig.get_paths()
    return [f"-I{paths[name]}" for name in ("include", "platinclude")]


def build(target: Path, level: int) -> list[Path]:
    """Make ``target`` a copy of the sources with the libraries; return the libraries.

    Raises:
        NoCompilerError: No C compiler works.
    """
    stamp, key = target / ".compiled", _key(level)
    if not stamp.exists() or stamp.read_text() != key:
        command = compiler()
        shutil.rmtree(target, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / "src", target, ignore=ignored)
        with chdir(target):
            _compile(command, level)
        stamp.write_text(key)
    return sorted(target.rglob(f"*{_SUFFIX}"))


def _compile(command: list[str], level: int) -> None:
    """Compile the modules in the current folder."""
    importlib.import_module("setuptools")  # mypyc builds for setuptools if that is imported
    mypyc = importlib.import_module("mypyc.build")
    modules = sorted(
        str(path)
        for folder in COMPILED
        for path in Path(folder).rglob("*.py")
        if path.name != "__init__.py"
    )
    options = ["--config-file=", "--ignore-missing-imports", "--python-version=3.11"]
    with TemporaryDirectory() as folder:
        objects: dict[str, str] = {}
        shown = StringIO()  # mypyc has a remark for every generator that becomes a list
        try:
            with redirect_stdout(shown):
                extensions = mypyc.mypycify(
                    [*options, *modules], group_name="gapless", target_dir=f"{folder}/c"
                )
        except SystemExit:
            print(shown.getvalue(), file=sys.stderr)
            raise
        for extension in extensions:
            include = [*_include(), *(f"-I{path}" for path in extension.include_dirs)]
            for source in extension.sources:
                if source not in objects:
                    objects[source] = f"{folder}/{len(objects)}.o"
                    flags = [*_CFLAGS, "-DNDEBUG", f"-O{level}", *include]
                    _run([*command, *flags, "-c", source, "-o", objects[source]])
            library = extension.name.replace(".", "/") + _SUFFIX
            _run([*command, *_LINK, *map(objects.get, extension.sources), "-o", library])


def _run(command: list[Any]) -> None:
    subprocess.run(command, check=True)


def _key(level: int) -> str:
    """Return a hash of everything that decides the result of a build."""
    digest = sha256(f"{sys.version} {_SUFFIX} {level} {os.environ.get('CC')}".encode())
    for path in [Path(__file__), *sorted((ROOT / "src").rglob("*.py"))]:
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


class CompiledWheelHook(BuildHookInterface[Any]):
    """Adds the libraries to a wheel, if ``GAPLESS_COMPILE`` asks for them."""

    PLUGIN_NAME = "custom"

    def _is_asked(self) -> bool:
        return os.environ.get(COMPILE_VARIABLE, "0") not in {"", "0"}

    def dependencies(self) -> list[str]:
        """Return the packages that the build needs."""
        return list(REQUIREMENTS) if self._is_asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the libraries to the wheel; an editable install stays pure."""
        if not self._is_asked() or version == "editable":
            return
        target = ROOT / "build" / "wheel"
        try:
            libraries = build(target, WHEEL_LEVEL)
        except NoCompilerError as error:
            self.app.display_warning(str(error))
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for library in libraries:
            build_data["force_include"][str(library)] = str(library.relative_to(target))


def main() -> None:
    """Build the compiled form for the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "compiled")
    parser.add_argument("--level", type=int, default=TEST_LEVEL)
    parser.add_argument("--probe", action="store_true", help="only look for a C compiler")
    arguments = parser.parse_args()
    try:
        if arguments.probe:
            compiler()
            return
        libraries = build(arguments.folder.resolve(), arguments.level)
    except NoCompilerError as error:
        sys.exit(str(error))
    print(f"{len(libraries) - 1} modules are compiled in {arguments.folder}")


if __name__ == "__main__":
    main()
