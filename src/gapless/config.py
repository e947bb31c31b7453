"""All settings of a member, in one frozen value.

``Config.make(xmit_interval="200ms")`` makes a config in Python, ``Config.load`` and
``Config.from_toml`` read TOML, and ``Config.from_properties`` reads a line such as
``capacity=64;xmit_interval=500``. ``Config(...)`` takes the inner form: nanoseconds and bytes.

Each way checks every value and the consistency of all values. An error is always a ``ConfigError``
with the name of the setting.
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from gapless.config_fields import (
    SettingSpec,
    Value,
    choice,
    count,
    duration,
    flag,
    percent,
    size,
    unknown_setting,
)
from gapless.delivery_mode import MAX_OUT_OF_BAND
from gapless.errors import ConfigError
from gapless.profiles import GROUP_PROFILES, UNICAST_PROFILES, Profile

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP_PROFILE_NAMES = tuple(GROUP_PROFILES)
"""The names of the profiles for messages to the group."""
UNICAST_PROFILE_NAMES = tuple(UNICAST_PROFILES)
"""The names of the profiles for messages to one member."""

WindowKind = Literal["fixed", "growing"]
RepairTo = Literal["auto", "always", "never"]
Checksum = Literal["auto", "all", "headers", "none"]
OnStall = Literal["report", "retransmit"]
OnSlowReceiver = Literal["warn", "wait", "expel"]
OnRetentionFull = Literal["wait", "release"]


class SettingInfo(NamedTuple):
    """One row of ``Config.explain``; the values are in the outer form, such as ``"500ms"``."""

    key: str
    kind: str
    value: Value
    default: Value
    allowed: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one member; ``Config()`` holds the defaults, chosen for a local network.

    A config is immutable; ``replace`` returns a changed copy. docs/reference/settings.md explains
    every setting.
    """

    profile: str = choice("nakack4", GROUP_PROFILE_NAMES, "The protocol of messages to the group.")
    unicast: str = choice(
        "unicast3", UNICAST_PROFILE_NAMES, "The protocol of messages to one member."
    )

    window: WindowKind = choice(
        "fixed",
        get_args(WindowKind),
        "A sender waits while a fixed window is full; a growing window has no limit of messages.",
    )
    capacity: int = count(
        16384, "Maximum number of messages in a fixed window.", minimum=1, maximum=1_048_576
    )
    max_seqno_ahead: int = count(
        262_144,
        "How far above the delivered mark a growing window accepts a seqno.",
        minimum=1,
        maximum=2**31,
    )
    window_bytes: int = size("16MiB", "Maximum number of bytes in a window.", minimum="1KiB")

    ack_threshold: int = count(
        0,
        "Deliveries after which an ack is sent at once; 0 means a quarter of the capacity.",
        maximum=1_048_576,
    )
    ack_delay_ns: int = duration("10ms", "Maximum delay of an ack.")

    min_ack_interval_ns: int = duration(
        "20ms", "Minimum time between two acks of a connection (unicast3)."
    )

    xmit_interval_ns: int = duration(
        "500ms",
        "Upper bound of the grace of a gap, of the back-off between naks and of the time between"
        " tail announcements; without adaptive_grace the fixed value of all three. 0 switches"
        " retransmission off.",
    )
    adaptive_grace: bool = flag(
        True, "Whether the grace of a gap follows the measured round-trip time."
    )
    min_grace_ns: int = duration("1ms", "Minimum time between a new gap and its first nak.")
    min_retry_ns: int = duration(
        "5ms", "Minimum time between two naks for the same gap.", minimum="1us"
    )
    initial_rtt_ns: int = duration(
        "10ms", "Round-trip time that is assumed until one has been measured.", minimum="1us"
    )
    jitter_percent: int = percent(
        25, "Random share of a repair timer, so that members do not send naks at the same time."
    )
    max_xmit_req_size: int = count(
        1024, "Maximum number of seqnos in one nak; 0 means what fits a frame.", maximum=2**31
    )

    use_mcast_xmit: RepairTo = choice(
        "auto",
        get_args(RepairTo),
        "Whether a repair is sent to all members (always), to the requesting one (never), or as the"
        " naks suggest (auto).",
        aliases=((True, "always"), (False, "never")),
    )
    xmit_from_random_member: bool = flag(
        False,
        "Whether naks go to any member that may hold the message, not to its origin (nakack).",
    )
    discard_delivered: bool = flag(
        False, "Whether receivers drop delivered messages before they are stable (nakack)."
    )
    stability_interval_ns: int = duration(
        "250ms", "Time between two stability votes while messages are not stable.", minimum="1ms"
    )
    stability_bytes: int = size(
        "1MiB",
        "Received bytes after which a member sends its stability vote at once.",
        minimum="1B",
    )
    repair_budget_bytes: int = size(
        "8MiB", "Maximum number of bytes of repairs per xmit_interval.", minimum="256B"
    )
    tail_delay_ns: int = duration(
        "20ms",
        "Idle time after the last message before a sender announces its tail.",
        minimum="1us",
    )

    max_frame_bytes: int = size(
        "1400B", "Maximum size of a frame.", minimum="256B", maximum="65000B"
    )
    max_run_bytes: int = size(
        "60000B",
        "Maximum size of a run of messages, unless a frame holds more.",
        minimum="256B",
        maximum="256000B",
    )
    whole_runs: bool = flag(
        False,
        "Whether a run larger than a frame is sent in one datagram instead of many frames; the"
        " transport sets it.",
    )
    checksum: Checksum = choice(
        "auto",
        get_args(Checksum),
        "What the checksum of a datagram covers: everything (all), all but messages (headers),"
        " nothing (none, in sealed groups only, whose datagrams have a stronger tag), or what the"
        " transport needs (auto).",
    )
    max_message_bytes: int = size(
        "64MiB", "Maximum size of a message, sent or received.", minimum="1B"
    )
    max_batch_size: int = count(0, "Maximum number of messages in one delivery; 0 means no limit.")
    unread_limit: int = count(
        0,
        "Maximum number of delivered messages that are not consumed; 0 means 16,384 over a"
        " transport, and no limit in the simulator.",
    )
    unread_bytes: int = size(
        "64MiB",
        "Maximum number of bytes of large messages (4 KiB on average) that are delivered and not"
        " consumed, beside unread_limit; 0 means no limit of bytes.",
        minimum="0B",
    )
    become_server_queue_size: int = count(
        50, "Maximum number of buffered runs of a stream whose start is not known yet."
    )
    early_bytes: int = size(
        "16MiB",
        "Maximum number of bytes kept for one member before they can be used: parts of a view,"
        " messages of a later view or of a stream whose start is unknown. All strangers share as"
        " much.",
        minimum="64KiB",
    )
    stall_after_ns: int = duration(
        "2s",
        "Age at which a gap that no member will repair is reported as a stall.",
        minimum="1ms",
        maximum="24h",
    )
    on_stall: OnStall = choice(
        "report",
        get_args(OnStall),
        "Whether a stall is only reported, or also switches retransmission on.",
    )
    max_out_of_band: int = count(
        1024,
        "Maximum number of unacknowledged out-of-band messages; further sends wait.",
        minimum=1,
        maximum=MAX_OUT_OF_BAND,
    )
    conn_expiry_timeout_ns: int = duration(
        "2min", "Idle time after which a connection starts to close; 0 means never."
    )
    conn_close_timeout_ns: int = duration(
        "4min", "How long a closing connection waits before it is closed; 0 means for ever."
    )
    sync_min_interval_ns: int = duration(
        "200ms",
        "Minimum time between two requests for the first message of a connection.",
        minimum="1us",
    )
    receive_buffer_bytes: int = size(
        "208KiB",
        "Size of the socket buffer that this member announces to senders.",
        minimum="1KiB",
        maximum="2GiB",
    )
    max_frames_ahead: int = count(
        512,
        "Maximum number of frames that others may send ahead of what this member has read; 0 means"
        " as many as its buffer holds.",
        maximum=1_048_576,
    )
    slow_receiver_after_ns: int = duration(
        "5s",
        "How long a member may block the window before an event names it.",
        minimum="1ms",
        maximum="24h",
    )
    on_slow_receiver: OnSlowReceiver = choice(
        "warn",
        get_args(OnSlowReceiver),
        "What to do with a member that blocks the window: report it repeatedly (warn), report it"
        " once (wait), or expel it (expel).",
    )

    heartbeat_interval_ns: int = duration(
        "1s",
        "Time after which an idle member sends a heartbeat.",
        minimum="1ms",
    )
    suspect_after_ns: int = duration(
        "5s", "Silence after which a member is suspected.", minimum="1ms"
    )
    verify_timeout_ns: int = duration(
        "1s",
        "How long a suspected member may take to answer before it is expelled.",
        minimum="1ms",
    )
    monitors: int = count(2, "Number of members that monitor each member.", minimum=1, maximum=64)
    found_after_ns: int = duration(
        "1s", "How long a new member looks for a group before it founds one.", minimum="1ms"
    )
    join_interval_ns: int = duration(
        "200ms",
        "Minimum time between two attempts to join, to leave, or to send a member its view.",
        minimum="1ms",
    )
    join_confirm_timeout_ns: int = duration(
        "1s",
        "How long a new member may take to confirm its view before it is dropped from it.",
        minimum="1ms",
    )
    bundle_delay_ns: int = duration(
        "500us",
        "How long messages that are sent without a pause are collected into one frame; 0 sends each"
        " at once.",
        maximum="100ms",
    )
    view_bundle_delay_ns: int = duration(
        "20ms", "How long joins and leaves are collected into one view."
    )
    merge_interval_ns: int = duration(
        "2s",
        "Time between two beacons, by which coordinators of separate views find each other.",
        minimum="1ms",
    )
    leave_timeout_ns: int = duration(
        "10s",
        "How long a leaving member waits for acks, and then for the view without it.",
        minimum="1ms",
    )
    retention_timeout_ns: int = duration(
        "1min",
        "How long messages are retained for an absent durable member.",
        maximum="24h",
    )
    on_retention_full: OnRetentionFull = choice(
        "wait",
        get_args(OnRetentionFull),
        "What to do when messages retained for an absent durable member fill the window: let sends"
        " wait (wait), or stop retaining them (release).",
    )
    state_window_bytes: int = size(
        "256KiB", "Maximum number of bytes of a state that are requested at once.", minimum="1KiB"
    )
    state_backlog_bytes: int = size(
        "64MiB",
        "Maximum number of bytes of messages that are held while the state is transferred.",
        minimum="1KiB",
    )
    state_timeout_ns: int = duration(
        "5s", "Silence of a state provider after which another member is asked.", minimum="1ms"
    )
    loopback: bool = flag(True, "Whether a sender receives its own messages.")

    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False, repr=False)
    """The settings that were written down, as opposed to defaults, by name."""

    def __post_init__(self) -> None:
        for setting in SETTINGS.values():
            setting.check(getattr(self, setting.name))
        self._check_consistency()

    @property
    def effective_ack_threshold(self) -> int:
        """Number of deliveries after which an ack is sent at once."""
        return self.ack_threshold or max(1, self.capacity // 4)

    @property
    def group_profile(self) -> Profile:
        """The policies of messages to the group."""
        return GROUP_PROFILES[self.profile]

    @property
    def unicast_profile(self) -> Profile:
        """The policies of messages to one member."""
        return UNICAST_PROFILES[self.unicast]

    @property
    def retransmits(self) -> bool:
        """Whether missing messages are requested and tails announced."""
        return self.xmit_interval_ns > 0

    @property
    def reach(self) -> int:
        """Maximum number of outstanding messages in a stream."""
        return self.capacity if self.window == "fixed" else self.max_seqno_ahead

    @classmethod
    def make(cls, **settings: object) -> Config:
        """Return a config from settings in the outer form, such as ``xmit_interval="200ms"``.

        Durations and sizes are texts with a unit. A profile changes defaults (``profile="ordered"``
        switches retransmission off), but never a setting of the caller.

        Args:
            settings: Settings by name; all other settings have their defaults.

        Raises:
            ConfigError: A setting is unknown, has an impossible value, or contradicts another
                setting.

        Examples:
            >>> from gapless import Config
            >>> config = Config.make(capacity=64, window_bytes="4MiB", leave_timeout="2s")
            >>> config.window_bytes
            4194304
            >>> config.as_dict()["leave_timeout"]
            '2s'
            >>> Config.make(capacity=0)
            Traceback (most recent call last):
            gapless.errors.ConfigError: capacity = 0: expected a whole number from 1 to 1048576
        """
        values = _read(settings)
        return cls(**_with_defaults(values), given=frozenset(values))

    @classmethod
    def from_toml(cls, text: str, *, table: str = "gapless") -> Config:
        """Return the config in ``table`` of a TOML text; ``""`` is the top level, dots nest.

        Raises:
            ConfigError: The text is not TOML, has no such table, or a setting is wrong.
        """
        import tomllib  # imported late: few programs have a file, and the import is slow

        try:
            found: object = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not valid TOML: {error}") from error
        for part in table.split(".") if table else ():
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise ConfigError(f"the TOML has no table [{table}]; put the settings under [{table}]")
        return cls.make(**found)

    @classmethod
    def load(cls, path: str | Path, *, table: str = "gapless") -> Config:
        """Return the config in ``table`` of a TOML file.

        Raises:
            ConfigError: The file cannot be read, has no such table, or a setting is wrong.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        try:
            return cls.from_toml(text, table=table)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_properties(cls, text: str) -> Config:
        """Return the config of a line such as ``capacity=64;xmit_interval=500``.

        JGroups writes properties in this form. A duration without a unit is in milliseconds; a
        duration or size may have a unit. JGroups' names of settings are accepted.

        Raises:
            ConfigError: The line is malformed, or a setting is wrong.
        """
        values: dict[str, Any] = {}
        for part in text.strip().removesuffix(";").split(";") if text.strip() else ():
            key, equals, value = (word.strip() for word in part.partition("="))
            if not equals or not key or not value:
                raise ConfigError(
                    f"{part.strip()!r} is not a property; write name=value;name=value"
                )
            setting, value = _property(key, value)
            if setting.name in values:
                raise ConfigError(f"{key} sets {setting.key} a second time; remove one of the two")
            values[setting.name] = setting.parse_text(value)
        return cls(**_with_defaults(values), given=frozenset(values))

    def replace(self, **settings: object) -> Config:
        """Return a copy with changed settings, written as for ``make``.

        Another profile replaces the defaults of the former profile by its own.
        """
        values = _read(settings)
        given = self.given | values.keys()
        if values.get("profile", self.profile) != self.profile:
            before = _read(self.group_profile.defaults)
            left = {
                name: SETTINGS_BY_FIELD[name].default
                for name, set_to in before.items()
                if getattr(self, name) == set_to
            }
            values = {**left, **_with_defaults(values)}
        return dataclasses.replace(self, **values, given=given)

    def as_dict(self) -> dict[str, Value]:
        """Return every setting in the outer form; ``Config.make`` is the inverse."""
        return {
            key: setting.format(getattr(self, setting.name)) for key, setting in SETTINGS.items()
        }

    def explain(self) -> list[SettingInfo]:
        """Return each setting with its value, default, allowed values and meaning."""
        return [
            SettingInfo(
                key,
                setting.kind.value,
                value,
                setting.format(setting.default),
                setting.allowed,
                setting.meaning,
            )
            for (key, value), setting in zip(self.as_dict().items(), SETTINGS.values(), strict=True)
        ]

    def _check_consistency(self) -> None:
        if self.ack_threshold > self.capacity:
            raise _pair_error(
                self,
                "ack_threshold",
                "capacity",
                "or no ack would be sent before the window is full",
            )
        if self.window == "growing" and self.max_seqno_ahead < self.capacity:
            raise _pair_error(
                self,
                "capacity",
                "max_seqno_ahead",
                "or a growing window would hold less than a fixed one",
            )
        if self.retransmits and self.min_grace_ns > self.xmit_interval_ns:
            raise _pair_error(self, "min_grace", "xmit_interval", "its upper bound")
        if self.retransmits and self.min_retry_ns > self.xmit_interval_ns:
            raise _pair_error(self, "min_retry", "xmit_interval", "its upper bound")
        if self.xmit_from_random_member and self.discard_delivered:
            raise ConfigError(
                "xmit_from_random_member = True with discard_delivered = True: receivers drop"
                " delivered messages, so only the origin can repair; set one of the two to"
                " false"
            )
        if self.max_frame_bytes > self.repair_budget_bytes:
            raise _pair_error(
                self, "max_frame_bytes", "repair_budget_bytes", "or a full frame is never repaired"
            )
        if (
            self.on_slow_receiver == "expel"
            and self.retransmits
            and self.slow_receiver_after_ns < 2 * self.xmit_interval_ns
        ):
            values = self.as_dict()
            raise ConfigError(
                f"slow_receiver_after = {values['slow_receiver_after']!r} with xmit_interval ="
                f" {values['xmit_interval']!r} and on_slow_receiver = 'expel': a member would be"
                " expelled before its losses are repaired; raise slow_receiver_after to two"
                " xmit_intervals or more"
            )


def _pair_error(config: Config, small: str, large: str, why: str) -> ConfigError:
    values = config.as_dict()
    return ConfigError(
        f"{small} = {values[small]!r} with {large} = {values[large]!r}: {small} must not exceed"
        f" {large}, {why}; lower {small} or raise {large}"
    )


def _read(settings: Mapping[str, object]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in settings.items():
        setting = SETTINGS.get(_current_key(key))
        if setting is None:
            raise unknown_setting(key, SETTINGS)
        if setting.name in values:
            raise ConfigError(f"{key} sets {setting.key} a second time; remove one of the two")
        values[setting.name] = setting.parse(value)
    return values


DEPRECATED_SETTINGS = {
    "ack_gap": "min_ack_interval",
    "far_limit": "max_seqno_ahead",
    "frames_ahead": "max_frames_ahead",
    "hold_timeout": "retention_timeout",
    "initial_round_trip": "initial_rtt",
    "join_timeout": "join_confirm_timeout",
    "max_unconsumed": "unread_limit",
    "on_hold_full": "on_retention_full",
    "on_pin": "on_slow_receiver",
    "pin_after": "slow_receiver_after",
    "send_gap": "bundle_delay",
    "view_gap": "view_bundle_delay",
}
"""Names of settings in 0.1, and their present names; old names are accepted until 0.3."""


def _current_key(key: str) -> str:
    """Return the present name of a setting; a name of 0.1 gives a DeprecationWarning."""
    if (current := DEPRECATED_SETTINGS.get(key)) is None:
        return key
    # The level names the caller of Config.make or Config.from_properties.
    warnings.warn(f"setting {key} is deprecated: use {current}", DeprecationWarning, stacklevel=4)
    return current


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values``, completed with the defaults of their profile."""
    row = GROUP_PROFILES.get(str(values.get("profile")))
    return values if row is None else {**_read(row.defaults), **values}


_JGROUPS_NAMES = {
    "discard_delivered_msgs": "discard_delivered",
    "desired_avg_gossip": "stability_interval",
    "max_bytes": "stability_bytes",
}


def _property(key: str, value: str) -> tuple[SettingSpec, str]:
    if key == "dynamic_buffers":
        kinds = {"true": "growing", "false": "fixed"}
        if value.lower() not in kinds:
            raise ConfigError(f"dynamic_buffers = {value!r}: expected true or false")
        return SETTINGS["window"], kinds[value.lower()]
    key = _current_key(_JGROUPS_NAMES.get(key, key))
    if key == "xmit_interval" and value.startswith("-"):
        return SETTINGS[key], "0"  # JGroups: every value below zero switches retransmission off
    if key not in SETTINGS:
        raise unknown_setting(key, [*SETTINGS, *_JGROUPS_NAMES, "dynamic_buffers"])
    return SETTINGS[key], value


def _settings() -> dict[str, SettingSpec]:
    settings = [
        SettingSpec(name=field.name, default=cast("Value", field.default), **field.metadata)
        for field in dataclasses.fields(Config)
        if field.metadata
    ]
    return {setting.key: setting for setting in settings}


SETTINGS: dict[str, SettingSpec] = _settings()
"""Every setting by its key, in the order of the docs."""
SETTINGS_BY_FIELD: dict[str, SettingSpec] = {setting.name: setting for setting in SETTINGS.values()}
"""Every setting by the name of its field."""
