import dataclasses
import json
import pickle
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gapless.config import DEPRECATED_SETTINGS, GROUP_PROFILE_NAMES, SETTINGS, Config
from gapless.config_fields import Kind, SettingSpec
from gapless.errors import ConfigError, GaplessError
from gapless.units import GIB, MIB, NS_PER_MS


def error_of(make: Callable[..., object], *args: object, **knobs: object) -> str:
    with pytest.raises(ConfigError) as caught:
        make(*args, **knobs)
    return str(caught.value)


def inner_values(knob: SettingSpec) -> st.SearchStrategy[Any]:
    if knob.kind is Kind.CHOICE:
        return st.sampled_from(knob.choices)
    if knob.kind is Kind.FLAG:
        return st.booleans()
    return st.integers(knob.minimum, knob.maximum or knob.minimum + GIB)


def fitted(values: dict[str, Any]) -> Config:
    """Any values, with those moved that the knob that bounds them would refuse."""
    values["ack_threshold"] = min(values["ack_threshold"], values["capacity"])
    if values["xmit_interval_ns"]:
        values["xmit_interval_ns"] = max(values["xmit_interval_ns"], 1000)
        values["min_grace_ns"] = min(values["min_grace_ns"], values["xmit_interval_ns"])
        values["min_retry_ns"] = min(values["min_retry_ns"], values["xmit_interval_ns"])
        values["slow_receiver_after_ns"] = max(
            values["slow_receiver_after_ns"], 2 * values["xmit_interval_ns"]
        )
    values["discard_delivered"] = (
        values["discard_delivered"] and not values["xmit_from_random_member"]
    )
    values["max_seqno_ahead"] = max(values["max_seqno_ahead"], values["capacity"])
    values["repair_budget_bytes"] = max(values["repair_budget_bytes"], values["max_frame_bytes"])
    return Config(**values)


configs = st.fixed_dictionaries({knob.name: inner_values(knob) for knob in SETTINGS.values()}).map(
    fitted
)


# Defaults


def test_defaults_are_the_documented_ones() -> None:
    assert Config().as_dict() == {
        "profile": "nakack4",
        "unicast": "unicast3",
        "window": "fixed",
        "capacity": 16384,
        "max_seqno_ahead": 262144,
        "window_bytes": "16MiB",
        "ack_threshold": 0,
        "ack_delay": "10ms",
        "min_ack_interval": "20ms",
        "xmit_interval": "500ms",
        "adaptive_grace": True,
        "min_grace": "1ms",
        "min_retry": "5ms",
        "initial_rtt": "10ms",
        "jitter_percent": 25,
        "max_xmit_req_size": 1024,
        "use_mcast_xmit": "auto",
        "xmit_from_random_member": False,
        "discard_delivered": False,
        "stability_interval": "250ms",
        "stability_bytes": "1MiB",
        "repair_budget_bytes": "8MiB",
        "tail_delay": "20ms",
        "max_frame_bytes": "1400B",
        "max_run_bytes": "60000B",
        "whole_runs": False,
        "checksum": "auto",
        "max_message_bytes": "64MiB",
        "max_batch_size": 0,
        "unread_limit": 0,
        "unread_bytes": "64MiB",
        "become_server_queue_size": 50,
        "early_bytes": "16MiB",
        "stall_after": "2s",
        "on_stall": "report",
        "max_out_of_band": 1024,
        "conn_expiry_timeout": "2min",
        "conn_close_timeout": "4min",
        "sync_min_interval": "200ms",
        "receive_buffer_bytes": "208KiB",
        "max_frames_ahead": 512,
        "slow_receiver_after": "5s",
        "on_slow_receiver": "warn",
        "heartbeat_interval": "1s",
        "suspect_after": "5s",
        "verify_timeout": "1s",
        "monitors": 2,
        "found_after": "1s",
        "join_interval": "200ms",
        "join_confirm_timeout": "1s",
        "bundle_delay": "500us",
        "view_bundle_delay": "20ms",
        "merge_interval": "2s",
        "leave_timeout": "10s",
        "retention_timeout": "1min",
        "on_retention_full": "wait",
        "state_window_bytes": "256KiB",
        "state_backlog_bytes": "64MiB",
        "state_timeout": "5s",
        "loopback": True,
    }


@pytest.mark.parametrize(("capacity", "expected"), [(16384, 4096), (4, 1), (3, 1), (1, 1)])
def test_ack_threshold_zero_means_a_quarter_of_the_capacity(capacity: int, expected: int) -> None:
    assert Config.make(capacity=capacity).effective_ack_threshold == expected


def test_ack_threshold_given_is_taken_as_it_is() -> None:
    assert Config.make(capacity=64, ack_threshold=7).effective_ack_threshold == 7


def test_a_config_is_a_value() -> None:
    config = Config.make(capacity=64)
    assert config == Config.make(capacity=64)
    assert hash(config) == hash(Config.make(capacity=64))
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.capacity = 1  # type: ignore[misc]


# Every declaration


@pytest.mark.parametrize("knob", SETTINGS.values(), ids=lambda knob: knob.key)
def test_declaration_is_complete(knob: SettingSpec) -> None:
    assert knob.meaning.endswith(".")
    assert "\n" not in knob.meaning
    assert knob.name.endswith("_ns") == (knob.kind is Kind.DURATION)
    assert knob.name.endswith("_bytes") == (knob.kind is Kind.SIZE)
    knob.check(knob.default)
    annotated = typing.get_type_hints(Config)[knob.name]
    if typing.get_origin(annotated) is typing.Literal:
        assert typing.get_args(annotated) == knob.choices
    else:
        assert type(knob.default) is annotated


def numeric_knobs() -> list[SettingSpec]:
    return [knob for knob in SETTINGS.values() if knob.kind not in (Kind.FLAG, Kind.CHOICE)]


@pytest.mark.parametrize("knob", numeric_knobs(), ids=lambda knob: knob.key)
def test_bounds_are_taken_and_one_beyond_is_not(knob: SettingSpec) -> None:
    knob.check(knob.minimum)
    assert knob.allowed in error_of(knob.check, knob.minimum - 1)
    if knob.maximum is not None:
        knob.check(knob.maximum)
        assert knob.allowed in error_of(knob.check, knob.maximum + 1)


@pytest.mark.parametrize("knob", SETTINGS.values(), ids=lambda knob: knob.key)
@pytest.mark.parametrize("wrong", [None, 1.5, [], {}, b"1", "no such thing"], ids=repr)
def test_wrong_type_is_named_with_its_knob(knob: SettingSpec, wrong: object) -> None:
    message = error_of(Config.make, **{knob.key: wrong})
    assert message.startswith(f"{knob.key} = {wrong!r}: ")


def test_true_is_not_a_number() -> None:
    assert "expected a whole number" in error_of(Config.make, capacity=True)
    assert "expected a size" in error_of(Config.make, window_bytes=True)
    assert "expected a duration" in error_of(Config.make, ack_delay=True)
    assert "expected a whole number" in error_of(Config, capacity=True)


def test_one_is_not_true() -> None:
    assert "expected true or false" in error_of(Config.make, loopback=1)


# Python


def test_make_reads_units() -> None:
    config = Config.make(xmit_interval="200ms", window_bytes="4MiB", max_frame_bytes=9000)
    assert (config.xmit_interval_ns, config.window_bytes, config.max_frame_bytes) == (
        200 * NS_PER_MS,
        4 * MIB,
        9000,
    )


def test_bare_duration_is_refused_with_advice() -> None:
    assert 'write "500ms"' in error_of(Config.make, xmit_interval=500)
    assert 'write "0.5ms"' in error_of(Config.make, xmit_interval=0.5)
    assert 'write "500ms"' in error_of(Config.make, xmit_interval="500")


def test_the_constructor_checks_too() -> None:
    assert "capacity = 0: expected a whole number from 1 to 1048576" in error_of(Config, capacity=0)
    assert "window = 'huge': expected one of fixed, growing" in error_of(Config, window="huge")


def test_true_and_false_are_words_for_where_repairs_go() -> None:
    assert Config.make(use_mcast_xmit=True).use_mcast_xmit == "always"
    assert Config.make(use_mcast_xmit=False).use_mcast_xmit == "never"
    assert Config.make(use_mcast_xmit="auto").use_mcast_xmit == "auto"
    assert "expected one of fixed, growing" in error_of(Config.make, window=True)


def test_unknown_knob_names_the_nearest_and_all() -> None:
    message = error_of(Config.make, capacty=4)
    assert "unknown setting 'capacty': did you mean 'capacity'?" in message
    assert all(key in message for key in SETTINGS)


def test_the_inner_name_is_answered_with_the_outer_one() -> None:
    assert "did you mean 'xmit_interval'" in error_of(Config.make, xmit_interval_ns=5)


def test_a_name_like_no_other_lists_all() -> None:
    message = error_of(Config.make, zzzz=1)
    assert "did you mean" not in message
    assert "capacity" in message


def test_unknown_profile_names_the_choices() -> None:
    message = error_of(Config.make, profile="nakack44")
    assert ", ".join(GROUP_PROFILE_NAMES) in message
    assert "did you mean 'nakack4'?" in message


def test_errors_are_both_ours_and_value_errors() -> None:
    with pytest.raises(GaplessError):
        Config.make(capacity=0)
    with pytest.raises(ValueError, match="capacity"):
        Config.make(capacity=0)


def test_replace_reads_like_make_and_leaves_the_original() -> None:
    config = Config.make(capacity=64)
    changed = config.replace(xmit_interval="1s")
    assert (changed.capacity, changed.xmit_interval_ns) == (64, 1000 * NS_PER_MS)
    assert config.xmit_interval_ns == 500 * NS_PER_MS
    assert "unknown setting" in error_of(config.replace, nope=1)
    assert "lower ack_threshold or raise capacity" in error_of(config.replace, ack_threshold=65)


# How knobs fit together


def test_nobody_is_expelled_before_a_loss_can_be_repaired() -> None:
    said = error_of(
        Config.make, on_slow_receiver="expel", slow_receiver_after="999ms", xmit_interval="500ms"
    )
    assert "slow_receiver_after = '999ms' with xmit_interval = '500ms'" in said
    assert "raise slow_receiver_after to two xmit_intervals" in said


@pytest.mark.parametrize(
    ("knobs", "small", "large"),
    [
        ({"capacity": 4, "ack_threshold": 5}, "ack_threshold", "capacity"),
        ({"min_grace": "501ms"}, "min_grace", "xmit_interval"),
        ({"min_retry": "501ms"}, "min_retry", "xmit_interval"),
        ({"window": "growing", "max_seqno_ahead": 100}, "capacity", "max_seqno_ahead"),
        ({"repair_budget_bytes": 1399}, "max_frame_bytes", "repair_budget_bytes"),
    ],
)
def test_values_that_do_not_fit_say_which_to_change(
    knobs: dict[str, object], small: str, large: str
) -> None:
    message = error_of(Config.make, **knobs)
    assert f"{small} must not exceed {large}" in message
    assert f"lower {small} or raise {large}" in message


@pytest.mark.parametrize(
    "knobs",
    [
        {"capacity": 4, "ack_threshold": 4},
        {"on_slow_receiver": "expel", "slow_receiver_after": "1s", "xmit_interval": "500ms"},
        {"on_slow_receiver": "warn", "slow_receiver_after": "1ms", "xmit_interval": "500ms"},
        {"min_grace": "500ms", "min_retry": "500ms"},
        {"window": "growing", "max_seqno_ahead": 16384},
        {"window": "fixed", "max_seqno_ahead": 1},
        {"repair_budget_bytes": 1400},
    ],
)
def test_values_that_just_fit_are_taken(knobs: dict[str, object]) -> None:
    config = Config.make(**knobs)
    assert {key: config.as_dict()[key] for key in knobs} == {
        key: SETTINGS[key].format(SETTINGS[key].parse(value)) for key, value in knobs.items()
    }


# TOML


def test_toml_table_is_read() -> None:
    text = (
        'other = 1\n[gapless]\ncapacity = 64\nxmit_interval = "200ms"\n'
        "window_bytes = 4096\nloopback = false\n"
    )
    assert Config.from_toml(text) == Config.make(
        capacity=64, xmit_interval="200ms", window_bytes="4KiB", loopback=False
    )


def test_toml_table_may_be_nested_or_the_top() -> None:
    assert Config.from_toml("[tool.gapless]\ncapacity = 8", table="tool.gapless").capacity == 8
    assert Config.from_toml("capacity = 8", table="").capacity == 8
    assert Config.from_toml("[gapless]") == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capacity = 64", "the TOML has no table [gapless]"),
        ("gapless = 3", "the TOML has no table [gapless]"),
        ("[gapless", "not valid TOML"),
        ("[gapless]\nxmit_interval = 500", 'write "500ms"'),
        ("[gapless]\ncapacty = 5", "did you mean 'capacity'"),
        ("[gapless.capacity]\nx = 5", "expected a whole number"),
        ("[gapless]\ncapacity = 2024-01-01", "expected a whole number"),
    ],
)
def test_bad_toml_says_what_is_wrong(text: str, message: str) -> None:
    assert message in error_of(Config.from_toml, text)


def test_load_reads_a_file_and_names_it_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "group.toml"
    assert f"cannot read {path}" in error_of(Config.load, path)
    path.write_text("[gapless]\ncapacity = 64\n")
    assert Config.load(path).capacity == 64
    assert Config.load(str(path)).capacity == 64
    path.write_text("[gapless]\ncapacity = 0\n")
    assert error_of(Config.load, path).startswith(f"{path}: capacity = 0: ")
    path.write_bytes(b"\xff\xfe")
    assert f"cannot read {path}" in error_of(Config.load, path)


# Property strings


def test_properties_count_bare_durations_in_milliseconds() -> None:
    config = Config.from_properties(
        "capacity=64;xmit_interval=500;ack_delay=7us;window_bytes=4KiB;max_frame_bytes=512"
    )
    assert (config.capacity, config.xmit_interval_ns, config.ack_delay_ns) == (
        64,
        500 * NS_PER_MS,
        7000,
    )
    assert (config.window_bytes, config.max_frame_bytes) == (4096, 512)


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_no_properties_are_the_defaults(text: str) -> None:
    assert Config.from_properties(text) == Config()


def test_whitespace_and_a_last_semicolon_do_not_matter() -> None:
    assert Config.from_properties(" capacity = 64 ;\n loopback = FALSE ; ") == Config.make(
        capacity=64, loopback=False
    )


@pytest.mark.parametrize(
    ("text", "window", "repairs"),
    [
        ("dynamic_buffers=true", "growing", "auto"),
        ("dynamic_buffers=False", "fixed", "auto"),
        ("window=growing;use_mcast_xmit=true", "growing", "always"),
        ("use_mcast_xmit=false", "fixed", "never"),
        ("use_mcast_xmit=never", "fixed", "never"),
    ],
)
def test_words_of_the_old_form_are_understood(text: str, window: str, repairs: str) -> None:
    config = Config.from_properties(text)
    assert (config.window, config.use_mcast_xmit) == (window, repairs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capacity", "'capacity' is not a property; write name=value;name=value"),
        ("=5", "'=5' is not a property"),
        ("capacity=", "'capacity=' is not a property"),
        ("capacity=1;;loopback=true", "'' is not a property"),
        ("capacity=1;capacity=2", "capacity sets capacity a second time"),
        ("window=fixed;dynamic_buffers=true", "dynamic_buffers sets window a second time"),
        ("dynamic_buffers=maybe", "dynamic_buffers = 'maybe': expected true or false"),
        ("dynamic_bufers=true", "did you mean 'dynamic_buffers'"),
        ("capacity=-1", "capacity = '-1': expected a whole number from 1 to 1048576"),
        ("ack_delay=-1", "ack_delay = '-1': expected a duration such as"),
        ("xmit_interval=1.5", 'write "1.5ms"'),
        ("loopback=1", "loopback = 1: expected true or false"),
        ("loopback=yes", "loopback = 'yes': expected true or false"),
        ("capacity=٣", "capacity = '٣': expected a whole number"),
    ],
)
def test_bad_properties_say_what_is_wrong(text: str, message: str) -> None:
    assert message in error_of(Config.from_properties, text)


# Round trips


@given(configs)
def test_as_dict_is_read_back_by_every_constructor(config: Config) -> None:
    shown = config.as_dict()
    words = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in shown.items()
    }
    toml = "\n".join(
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {words[key]}"
        for key, value in shown.items()
    )
    assert Config.make(**shown) == config
    assert Config().replace(**shown) == config
    assert Config.from_toml(toml, table="") == config
    assert (
        Config.from_properties(";".join(f"{key}={value}" for key, value in words.items())) == config
    )


def test_explain_shows_value_default_and_bounds() -> None:
    rows = {row.key: row for row in Config.make(xmit_interval="2s").explain()}
    assert list(rows) == list(SETTINGS)
    row = rows["xmit_interval"]
    assert (row.kind, row.value, row.default, row.allowed) == (
        "duration",
        "2s",
        "500ms",
        "a duration from 0s to 1h",
    )
    assert row.meaning == SETTINGS["xmit_interval"].meaning


@pytest.mark.parametrize(("old", "new"), DEPRECATED_SETTINGS.items())
def test_a_name_of_0_1_is_accepted_with_a_warning(old: str, new: str) -> None:
    value = Config().as_dict()[new]
    changed = {"unread_limit": 7, "retention_timeout": "2s"}.get(new, value)
    expected = Config.make(**{new: changed})
    reads: list[Callable[[], Config]] = [
        lambda: Config.make(**{old: changed}),
        lambda: Config().replace(**{old: changed}),
        lambda: Config.from_properties(f"{old}={changed}"),
        lambda: Config.from_toml(f"[gapless]\n{old} = {json.dumps(changed)}\n"),
    ]
    for read in reads:
        with pytest.warns(DeprecationWarning, match=f"setting {old} is deprecated: use {new}"):
            assert read() == expected


def test_an_old_and_a_new_name_of_one_setting_are_not_both_accepted() -> None:
    with (
        pytest.warns(DeprecationWarning, match="pin_after is deprecated"),
        pytest.raises(ConfigError, match="pin_after sets slow_receiver_after a second time"),
    ):
        Config.make(slow_receiver_after="1s", pin_after="2s")
