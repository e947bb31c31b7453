"""Every knob of a member, in one frozen value.

There are four ways to make a :class:`Config`, and all of them check every value and how the values
fit together: ``Config.make(xmit_interval="200ms")`` in Python, :meth:`Config.from_toml` and
:meth:`Config.load` for TOML, and :meth:`Config.from_properties` for a line such as
``capacity=64;xmit_interval=500``. ``Config(...)`` itself takes the inner form, nanoseconds and
bytes. What is wrong is always a :class:`gapless.errors.ConfigError` that names the knob.
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
"""The profiles of messages to all."""
UNICAST_PROFILE_NAMES = tuple(UNICAST_PROFILES)
"""The profiles of messages to one."""

WindowKind = Literal["fixed", "growing"]
RepairTo = Literal["auto", "always", "never"]
Checksum = Literal["auto", "all", "headers"]
OnStall = Literal["report", "retransmit"]
OnSlowReceiver = Literal["warn", "wait", "expel"]
OnRetentionFull = Literal["wait", "release"]


class SettingInfo(NamedTuple):
    """One knob as :meth:`Config.explain` shows it; ``value`` and ``default`` are in the form a person writes."""

    key: str
    kind: str
    value: Value
    default: Value
    allowed: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one member; ``Config()`` is the default for a local network."""

    profile: str = choice("nakack4", GROUP_PROFILE_NAMES, "The protocol of messages to all.")
    unicast: str = choice(
        "unicast3", UNICAST_PROFILE_NAMES, "The protocol of messages to one member."
    )

    window: WindowKind = choice(
        "fixed",
        get_args(WindowKind),
        "A fixed window makes the sender wait when it is full; a growing one takes whatever comes.",
    )
    capacity: int = count(
        16384, "Messages that a fixed window holds.", minimum=1, maximum=1_048_576
    )
    max_seqno_ahead: int = count(
        262_144,
        "How far above the delivered mark a growing window still takes a seqno.",
        minimum=1,
        maximum=2**31,
    )
    window_bytes: int = size("16MiB", "Bytes that a window holds.", minimum="1KiB")

    ack_threshold: int = count(
        0,
        "Deliveries after which an ack goes out at once; 0 means a quarter of the capacity.",
        maximum=1_048_576,
    )
    ack_delay_ns: int = duration("10ms", "Longest time that an ack is owed before it goes out.")

    min_ack_interval_ns: int = duration(
        "20ms", "Shortest time between two acks of a connection (unicast3)."
    )

    xmit_interval_ns: int = duration(
        "500ms",
        "Upper bound of the grace of a gap, of the back-off between naks and of the pause between tail announcements;"
        " the fixed timer of all three when adaptive_grace is off. 0 switches retransmission off.",
    )
    adaptive_grace: bool = flag(True, "Whether the grace of a gap follows the measured round trip.")
    min_grace_ns: int = duration(
        "1ms", "Shortest grace that a fresh gap gets before it is asked for."
    )
    min_retry_ns: int = duration(
        "5ms", "Shortest pause before the same gap is asked for again.", minimum="1us"
    )
    initial_rtt_ns: int = duration(
        "10ms", "Round trip that is assumed until one has been measured.", minimum="1us"
    )
    jitter_percent: int = percent(
        25, "Share of a repair timer that is drawn at random, so that members do not ask at once."
    )
    max_xmit_req_size: int = count(
        1024, "Seqnos that one nak names at most; 0 means what fits a frame.", maximum=2**31
    )

    use_mcast_xmit: RepairTo = choice(
        "auto",
        get_args(RepairTo),
        "Whether a repair goes to all members (always), to the one that asked (never), or as the naks suggest (auto).",
        aliases=((True, "always"), (False, "never")),
    )
    xmit_from_random_member: bool = flag(
        False,
        "Whether a receiver asks any member that may hold a message, rather than its origin (nakack).",
    )
    discard_delivered: bool = flag(
        False, "Whether receivers forget what they have delivered before it is stable (nakack)."
    )
    stability_interval_ns: int = duration(
        "250ms", "Time between two votes on what is stable, while something is not.", minimum="1ms"
    )
    stability_bytes: int = size(
        "1MiB", "Bytes received after which a member votes at once.", minimum="1B"
    )
    repair_budget_bytes: int = size(
        "8MiB", "Bytes of repairs that a member sends per xmit_interval.", minimum="256B"
    )
    tail_delay_ns: int = duration(
        "20ms", "Quiet time after the last data before a sender announces its tail.", minimum="1us"
    )

    max_frame_bytes: int = size(
        "1400B", "Largest frame that is sent.", minimum="256B", maximum="65000B"
    )
    max_run_bytes: int = size(
        "60000B",
        "Bytes of messages that are numbered, stored and sent as one, unless a frame holds more.",
        minimum="256B",
        maximum="256000B",
    )
    whole_runs: bool = flag(
        False,
        "Whether a run that is larger than a frame goes in one datagram, or in many frames; a transport sets it.",
    )
    checksum: Checksum = choice(
        "auto",
        get_args(Checksum),
        "What the checksum of a datagram covers: everything (all), everything but messages (headers), or everything"
        " unless it stays within this machine (auto).",
    )
    max_message_bytes: int = size(
        "64MiB", "Largest message that is sent or put together.", minimum="1B"
    )
    max_batch_size: int = count(
        0, "Messages that one delivery hands out at most; 0 means no limit."
    )
    unread_limit: int = count(
        0, "Messages that may be handed out and not yet reported as consumed; 0 means no limit."
    )
    become_server_queue_size: int = count(
        50, "Runs that are kept of a stream whose start is not known yet."
    )
    stall_after_ns: int = duration(
        "2s",
        "Age at which a gap that nobody will repair is reported as a stall.",
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
        "Out-of-band messages that may wait for acks; more have to wait.",
        minimum=1,
        maximum=MAX_OUT_OF_BAND,
    )
    conn_expiry_timeout_ns: int = duration(
        "2min", "Idle time after which a connection is closing; 0 means never."
    )
    conn_close_timeout_ns: int = duration(
        "4min", "Time after which a connection that is closing is closed; 0 means never."
    )
    sync_min_interval_ns: int = duration(
        "200ms",
        "Shortest time between two questions for the first message of a connection.",
        minimum="1us",
    )
    receive_buffer_bytes: int = size(
        "208KiB",
        "What this member tells the senders that its socket buffer takes.",
        minimum="1KiB",
        maximum="2GiB",
    )
    max_frames_ahead: int = count(
        512,
        "Frames that others may send ahead of what this member has read, as far as its buffer takes them; 0 means as"
        " many as it takes.",
        maximum=1_048_576,
    )
    slow_receiver_after_ns: int = duration(
        "5s",
        "How long a member may pin the window before an event names it.",
        minimum="1ms",
        maximum="24h",
    )
    on_slow_receiver: OnSlowReceiver = choice(
        "warn",
        get_args(OnSlowReceiver),
        "What comes of a member that pins the window: it is named again and again (warn), named once (wait), or"
        " expelled.",
    )

    heartbeat_interval_ns: int = duration(
        "1s",
        "Time after which a member that has sent nothing else shows that it lives.",
        minimum="1ms",
    )
    suspect_after_ns: int = duration(
        "5s", "Silence after which a member is suspected.", minimum="1ms"
    )
    verify_timeout_ns: int = duration(
        "1s",
        "Time in which a suspected member may still answer before it is expelled.",
        minimum="1ms",
    )
    monitors: int = count(2, "Members that watch each member.", minimum=1, maximum=64)
    found_after_ns: int = duration(
        "1s", "Time in which a new member looks for a group before it founds one.", minimum="1ms"
    )
    join_interval_ns: int = duration(
        "200ms",
        "Shortest time between two tries to join, to leave, or to bring a member a view.",
        minimum="1ms",
    )
    join_timeout_ns: int = duration(
        "1s",
        "Time in which a new member must confirm its view before others are told.",
        minimum="1ms",
    )
    bundle_delay_ns: int = duration(
        "500us",
        "Time in which messages that are sent one after another, without a pause, are gathered into one frame; 0 lets"
        " each leave at once.",
        maximum="100ms",
    )
    view_bundle_delay_ns: int = duration(
        "20ms", "Time in which joins and leaves are gathered into one view."
    )
    merge_interval_ns: int = duration(
        "2s",
        "Time between two beacons by which the coordinators of separate views find each other.",
        minimum="1ms",
    )
    leave_timeout_ns: int = duration(
        "10s",
        "Time in which a leaving member waits for acks and for the group to take note.",
        minimum="1ms",
    )
    retention_timeout_ns: int = duration(
        "1min",
        "Time for which the place of a durable member is kept while it is away.",
        maximum="24h",
    )
    on_retention_full: OnRetentionFull = choice(
        "wait",
        get_args(OnRetentionFull),
        "What comes of a window that is full because a durable member is away: sends wait, or its place is released.",
    )
    state_window_bytes: int = size(
        "256KiB", "Bytes of a state that are asked for at once.", minimum="1KiB"
    )
    state_backlog_bytes: int = size(
        "64MiB",
        "Bytes of messages that a new member keeps while it waits for the state.",
        minimum="1KiB",
    )
    state_timeout_ns: int = duration(
        "5s", "Silence of one that gives the state after which another is asked.", minimum="1ms"
    )
    loopback: bool = flag(True, "Whether a sender's own messages are delivered to it too.")

    def __post_init__(self) -> None:
        for knob in SETTINGS.values():
            knob.check(getattr(self, knob.name))
        self._check_consistency()

    @property
    def effective_ack_threshold(self) -> int:
        """Deliveries after which an ack goes out at once."""
        return self.ack_threshold or max(1, self.capacity // 4)

    @property
    def group_profile(self) -> Profile:
        """The policies of messages to all."""
        return GROUP_PROFILES[self.profile]

    @property
    def unicast_profile(self) -> Profile:
        """The policies of messages to one member."""
        return UNICAST_PROFILES[self.unicast]

    @property
    def retransmits(self) -> bool:
        """Whether what is missing is asked for, and the end of a stream announced."""
        return self.xmit_interval_ns > 0

    @property
    def reach(self) -> int:
        """How many messages may be outstanding in a stream."""
        return self.capacity if self.window == "fixed" else self.max_seqno_ahead

    @classmethod
    def make(cls, **knobs: object) -> Config:
        """Return a config with the named knobs set, durations and sizes as text: ``make(xmit_interval="200ms")``.

        What a profile sets by itself (``profile="ordered"`` switches retransmission off) holds
        unless it is named too.
        """
        return cls(**_with_defaults(_read(knobs)))

    @classmethod
    def from_toml(cls, text: str, *, table: str = "gapless") -> Config:
        """Return the config that a TOML text holds in ``table`` (dots for nesting, ``""`` for the top level)."""
        import tomllib  # few programs have such a file, and it takes a while

        try:
            found: object = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"this is not TOML: {error}") from error
        for part in table.split(".") if table else ():
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise ConfigError(
                f"there is no table [{table}]; add one, or name the table that holds the knobs"
            )
        return cls.make(**found)

    @classmethod
    def load(cls, path: str | Path, *, table: str = "gapless") -> Config:
        """Return the config that a TOML file holds in ``table``."""
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

        The form is that of JGroups, and so is its convention that a bare duration counts
        milliseconds. A duration or size may carry a unit as well. The names that JGroups has for
        some knobs are understood too.
        """
        values: dict[str, Any] = {}
        for part in text.strip().removesuffix(";").split(";") if text.strip() else ():
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not key or not value:
                raise ConfigError(
                    f"{part.strip()!r} is not a property; write name=value;name=value"
                )
            knob, value = _property(key, value)
            if knob.name in values:
                raise ConfigError(f"{key} sets {knob.key} a second time; keep one of them")
            values[knob.name] = knob.parse_text(value)
        return cls(**_with_defaults(values))

    def replace(self, **knobs: object) -> Config:
        """Return a copy with the named knobs set, in the same form that :meth:`make` takes.

        With another profile comes what that profile sets, in the place of what the former one did.
        """
        values = _read(knobs)
        if values.get("profile", self.profile) != self.profile:
            before = _read(self.group_profile.defaults)
            left = {
                name: SETTINGS_BY_FIELD[name].default
                for name, set_to in before.items()
                if getattr(self, name) == set_to
            }
            values = {**left, **_with_defaults(values)}
        return dataclasses.replace(self, **values)

    def as_dict(self) -> dict[str, Value]:
        """Return every knob in the form a person writes; ``Config.make(**config.as_dict())`` equals ``config``."""
        return {key: knob.format(getattr(self, knob.name)) for key, knob in SETTINGS.items()}

    def explain(self) -> list[SettingInfo]:
        """Return one row for each knob: its value here, its default, what it may be, and what it means."""
        return [
            SettingInfo(
                key, knob.kind.value, value, knob.format(knob.default), knob.allowed, knob.meaning
            )
            for (key, value), knob in zip(self.as_dict().items(), SETTINGS.values(), strict=True)
        ]

    def _check_consistency(self) -> None:
        if self.ack_threshold > self.capacity:
            raise _pair_error(
                self,
                "ack_threshold",
                "capacity",
                "or no ack would go out before the window is full",
            )
        if self.window == "growing" and self.max_seqno_ahead < self.capacity:
            raise _pair_error(
                self,
                "capacity",
                "max_seqno_ahead",
                "or a growing window would hold less than a fixed one",
            )
        if self.retransmits and self.min_grace_ns > self.xmit_interval_ns:
            raise _pair_error(self, "min_grace", "xmit_interval", "which bounds it from above")
        if self.retransmits and self.min_retry_ns > self.xmit_interval_ns:
            raise _pair_error(self, "min_retry", "xmit_interval", "which bounds it from above")
        if self.xmit_from_random_member and self.discard_delivered:
            raise ConfigError(
                "xmit_from_random_member = True with discard_delivered = True: nobody holds what it has delivered, so "
                "nobody but the origin can repair it; set one of them to false"
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
                f"slow_receiver_after = {values['slow_receiver_after']!r} with xmit_interval = {values['xmit_interval']!r} and on_slow_receiver = "
                "'expel': a member would be expelled before what it lost could be repaired, again and again; raise "
                "slow_receiver_after to two xmit_intervals or more"
            )


def _pair_error(config: Config, small: str, large: str, why: str) -> ConfigError:
    values = config.as_dict()
    return ConfigError(
        f"{small} = {values[small]!r} with {large} = {values[large]!r}: {small} must not exceed {large}, {why}; "
        f"lower {small} or raise {large}"
    )


def _read(knobs: Mapping[str, object]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in knobs.items():
        setting = SETTINGS.get(_current_key(key))
        if setting is None:
            raise unknown_setting(key, SETTINGS)
        if setting.name in values:
            raise ConfigError(f"{key} sets {setting.key} a second time; keep one of them")
        values[setting.name] = setting.parse(value)
    return values


DEPRECATED_SETTINGS = {
    "ack_gap": "min_ack_interval",
    "far_limit": "max_seqno_ahead",
    "frames_ahead": "max_frames_ahead",
    "hold_timeout": "retention_timeout",
    "initial_round_trip": "initial_rtt",
    "max_unconsumed": "unread_limit",
    "on_hold_full": "on_retention_full",
    "on_pin": "on_slow_receiver",
    "pin_after": "slow_receiver_after",
    "send_gap": "bundle_delay",
    "view_gap": "view_bundle_delay",
}
"""Names of settings in 0.1, and their present names; the old ones are accepted until 0.3."""


def _current_key(key: str) -> str:
    """Return the present name of a setting; a name of 0.1 gives a DeprecationWarning."""
    if (current := DEPRECATED_SETTINGS.get(key)) is None:
        return key
    # The level names the caller of Config.make or Config.from_properties.
    warnings.warn(f"setting {key} is now {current}", DeprecationWarning, stacklevel=4)
    return current


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` with what their profile sets where they say nothing."""
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
        return SETTINGS[key], "0"  # whatever is not above zero switches retransmission off
    if key not in SETTINGS:
        raise unknown_setting(key, [*SETTINGS, *_JGROUPS_NAMES, "dynamic_buffers"])
    return SETTINGS[key], value


def _settings() -> dict[str, SettingSpec]:
    knobs = [
        SettingSpec(name=field.name, default=cast("Value", field.default), **field.metadata)
        for field in dataclasses.fields(Config)
    ]
    return {knob.key: knob for knob in knobs}


SETTINGS: dict[str, SettingSpec] = _settings()
"""Every knob by the name that a person writes, in the order of the docs."""
SETTINGS_BY_FIELD: dict[str, SettingSpec] = {knob.name: knob for knob in SETTINGS.values()}
"""The same by the name of the field."""
