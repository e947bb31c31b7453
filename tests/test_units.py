from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from gapless.errors import ConfigError
from gapless.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("1ns", 1),
        ("250us", 250_000),
        ("250µs", 250_000),
        ("500ms", 500_000_000),
        ("1.5s", 1_500_000_000),
        (" 2 min ", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("0s", 0),
        ("0.000001ms", 1),
    ],
)
def test_duration_is_read(text: str, duration_ns: int) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1400", 1400),
        ("1400B", 1400),
        ("4KiB", 4096),
        ("16MiB", 16 * 1024 * 1024),
        ("0.5GiB", 512 * 1024 * 1024),
        ("64kB", 64_000),
        ("1 MB", 1_000_000),
        ("2GB", 2_000_000_000),
        ("0", 0),
    ],
)
def test_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("500", 'write "500ms"'),
        ("", "expected a duration such as"),
        ("ms", "expected a duration such as"),
        ("-5ms", "expected a duration such as"),
        ("1e3ms", "expected a duration such as"),
        ("٣ms", "expected a duration such as"),
        ("5 lightyears", "the units of a duration are h, min, s, ms, us, ns"),
        ("5MS", "unknown unit 'MS'"),
        ("0.5ns", "not a whole number of nanoseconds"),
    ],
)
def test_bad_duration_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lots", "expected a size such as"),
        ("-1KiB", "expected a size such as"),
        ("4M", "the units of a size are GiB, MiB, KiB, B, GB, MB, kB"),
        ("0.3B", "not a whole number of bytes"),
    ],
)
def test_bad_size_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_size(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_500_000_000, "1500ms"),
        (90_000_000_000, "90s"),
        (7_200_000_000_000, "2h"),
    ],
)
def test_duration_is_printed_in_the_largest_whole_unit(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0B"), (1400, "1400B"), (1536, "1536B"), (212_992, "208KiB"), (1024**3, "1GiB")],
)
def test_size_is_printed_in_the_largest_whole_unit(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize("print_it", [format_duration, format_size])
def test_a_negative_quantity_is_a_bug_of_the_caller(print_it: Callable[[int], str]) -> None:
    with pytest.raises(ValueError, match="is negative; expected"):
        print_it(-1)


@given(st.integers(min_value=0, max_value=2**70))
def test_what_is_printed_is_read_back(number: int) -> None:
    assert parse_duration(format_duration(number)) == number
    assert parse_size(format_size(number)) == number
