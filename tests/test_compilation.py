"""Which modules are compiled, and the way back to their sources."""

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

import pytest

import gapless
from gapless.compilation import _SourceFinder
from gapless.protocol import member
from gapless.sim.mutants.planting import CompiledMutantError, Mutant, planted


def test_a_source_is_found_beside_its_library(tmp_path: Path) -> None:
    source, library = tmp_path / "window.py", tmp_path / f"window{EXTENSION_SUFFIXES[0]}"
    source.touch()
    library.touch()
    preferred = PathFinder.find_spec("gapless.window", [str(tmp_path)])
    found = _SourceFinder.find_spec("gapless.window", [str(tmp_path)])
    assert preferred is not None
    assert preferred.origin == str(library)
    assert found is not None
    assert found.origin == str(source)


def test_modules_of_other_packages_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "window.py").touch()
    assert _SourceFinder.find_spec("other.window", [str(tmp_path)]) is None


def test_the_environment_turns_compiled_code_off() -> None:
    program = (
        "import gapless, gapless.protocol.member as m; print(gapless.compiled, m.__file__[-3:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "GAPLESS_COMPILED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "() .py\n"


def test_compiled_modules_are_those_that_run() -> None:
    assert ("gapless.protocol.member" in gapless.compiled) == (member.__file__[-3:] != ".py")


def test_a_mutant_of_a_compiled_module_is_refused() -> None:
    mutant = Mutant("name", "bug", "msgpack._cmsgpack:Packer.pack", "old", "new")
    with (
        pytest.raises(CompiledMutantError, match=r"is compiled: run .* GAPLESS_COMPILED=0"),
        planted(mutant),
    ):
        pass


@pytest.mark.skipif(not gapless.compiled, reason="only the compiled form differs from the sources")
def test_seeds_have_equal_digests_compiled_and_from_the_sources() -> None:
    program = (
        "from gapless.sim.runner import simulate\n"
        "for seed in range(12): print(simulate(seed, membership=seed % 2 == 1).digest)"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "GAPLESS_COMPILED": value},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for value in ("0", "1")
    ]
    assert done[0] == done[1]
    assert len(set(done[0].split())) == 12
