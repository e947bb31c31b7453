"""Hypothesis profiles: ``ci`` repeats itself exactly; ``nightly`` looks 50 times as far, elsewhere each time.

Choose with the environment variable GAPLESS_HYPOTHESIS. A test that wants more or fewer examples
multiplies ``settings.default.max_examples``, so that it grows with the profile.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("GAPLESS_HYPOTHESIS", "ci"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests that have to run one after the other: at the end only one of the workers would be busy."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
