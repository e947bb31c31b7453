"""Hypothesis profiles: ``ci`` is deterministic; ``nightly`` tries 50 times as many new examples.

Choose with the environment variable GAPLESS_HYPOTHESIS. A test that wants more or fewer examples
multiplies ``settings.default.max_examples``, so that it grows with the profile.

Members of tests, and of their child processes, share a folder for configurations of their own: the
keys of the user who runs the tests are neither used nor changed.

With GAPLESS_TEST_COMPILED=1 the tests must run in the compiled form. Tests that change functions of
compiled modules, and tests with the marker ``interpreted``, are skipped there.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import settings

import gapless
from gapless.sim.mutants.planting import CompiledMutantError

settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("GAPLESS_HYPOTHESIS", "ci"))

for _name in ("GAPLESS_KEYS", "GAPLESS_INSECURE"):
    os.environ.pop(_name, None)
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit the folder
    os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="gapless-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

if os.environ.get("GAPLESS_TEST_COMPILED") == "1":
    assert gapless.compiled, f"{gapless.__file__} is pure Python: set PYTHONPATH"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs Python functions."""
    if gapless.compiled and (marker := item.get_closest_marker("interpreted")):
        pytest.skip(f"{marker.args[0]}; the protocol is compiled")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip a test that plants a bug in a compiled module, or derives a class from one there."""
    try:
        yield
    except CompiledMutantError as error:
        pytest.skip(str(error))
    except TypeError as error:
        if "interpreted classes cannot inherit from compiled" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with tests that run one after the other, so that all workers are busy until the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
