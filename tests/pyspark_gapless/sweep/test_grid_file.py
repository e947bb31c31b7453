"""The grid file: its cells, what it rejects, and that the commands of a cell describe the cell."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gapless.config import Config
from gapless.errors import ConfigError
from gapless.sim.profile_cost import config_of, properties_of
from gapless.sim.swarm.profile_draw import ALL_PROFILES
from gapless.units import NS_PER_MS
from pyspark_gapless.sweep.cell import SweepCell, code_digest
from pyspark_gapless.sweep.grid_file import (
    MAX_CELLS,
    PRESETS,
    load_grid,
    preset,
    read_grid,
    with_mutant,
)

WHOLE = """
[grid]
profile = ["nakack4", "unicast3"]
members = [3, 8]
loss = [0, 1, 2.5]
capacity = [64, 512]
xmit_interval = ["100ms", "0.5s", "500ms"]
adaptive_grace = false

[work]
messages = 50
size = ["100B", 2000]
pace = "2ms"
"""


def test_every_combination_is_a_cell_once() -> None:
    cells = read_grid(WHOLE)
    assert len(cells) == 2 * 2 * 3 * 2 * 2 * 2, "0.5s and 500ms are the same"
    assert len({cell.key for cell in cells}) == len(cells)
    knobs = (("adaptive_grace", "false"), ("capacity", "64"), ("xmit_interval", "100ms"))
    assert cells[0] == SweepCell("grid", "nakack4", 3, 50, 0.0, 100, 2 * NS_PER_MS, knobs)
    assert cells[0].config() == Config.make(
        capacity=64, xmit_interval="100ms", adaptive_grace=False
    )
    assert cells[-1].config() == Config.make(
        unicast="unicast3", capacity=512, xmit_interval="500ms", adaptive_grace=False
    )


def test_what_is_left_out_has_the_defaults_of_compare() -> None:
    assert read_grid("[grid]") == [SweepCell("grid", "nakack4", 3, 300, 0.0, 100, NS_PER_MS)]


def test_several_grids_add_up() -> None:
    text = "[[grid]]\nloss = [0, 1]\n[[grid]]\nloss = [1, 2]\nmembers = 3\n[hunt]\ngroups = 'told'"
    assert [(cell.kind, cell.loss_percent) for cell in read_grid(text)] == [
        ("grid", 0.0),
        ("grid", 1.0),
        ("grid", 2.0),
        ("told", None),
    ]


def test_a_hunt_draws_what_is_not_said() -> None:
    assert read_grid("[hunt]") == [
        SweepCell("told", None, None, 100),
        SweepCell("membership", None, None, 40),
    ]
    text = "[hunt]\nmessages = 7\nmembers = [2, 4]\nprofile = 'classic'\ngroups = ['membership']"
    assert read_grid(text) == [SweepCell("membership", "classic", members, 7) for members in (2, 4)]


def test_a_key_is_the_same_in_every_process_and_changes_with_every_parameter() -> None:
    cell = read_grid("[grid]\ncapacity = 64")[0]
    assert cell.key == "d5a3d19bb4d08e19"
    other = [
        cell._replace(kind="told"),
        cell._replace(profile="nakack"),
        cell._replace(members=4),
        cell._replace(messages=1),
        cell._replace(loss_percent=1.0),
        cell._replace(size_bytes=1),
        cell._replace(pace_ns=1),
        cell._replace(knobs=()),
        cell._replace(mutant="purge at maximum"),
    ]
    assert len({cell.key, *(one.key for one in other)}) == len(cell) + 1


@pytest.mark.parametrize("profile", ALL_PROFILES)
def test_knobs_come_back_from_a_command_line(profile: str) -> None:
    text = f"""
    [grid]
    profile = "{profile}"
    capacity = 16
    window = "fixed"
    xmit_interval = "40ms"
    use_mcast_xmit = true
    loopback = false
    max_frame_bytes = "1KiB"
    """
    (cell,) = read_grid(text)
    config = cell.config()
    assert config is not None
    assert config.window == "fixed"
    assert config_of(profile, properties_of(config)) == config
    words = shlex.split(cell.replay(7))
    assert words[:2] == ["gapless", "compare"]
    assert config_of(profile, words[words.index("--properties") + 1]) == config


def test_the_commands_of_a_cell() -> None:
    (cell,) = read_grid(
        "[grid]\nloss = 2.5\nmembers = 5\ncapacity = 8\n[work]\nmessages = 9\nsize = 0\npace = "
        "'5us'"
    )
    rest = '--loss 2.5% --members 5 --messages 9 --size 0 --pace 5us --properties "capacity=8"'
    assert cell.replay(4) == f"gapless compare --profiles nakack4 --seed 4 {rest}"
    assert cell.shrink(4) == f"gapless shrink 4 --profile nakack4 {rest}"
    told, membership = with_mutant(read_grid("[hunt]\nmessages = 40"), "purge at maximum")
    assert told.replay(4) == 'gapless sim 4 --messages 40 --mutant "purge at maximum"'
    assert membership.shrink(4) == 'gapless shrink 4 --membership --mutant "purge at maximum"'


def test_presets_are_grid_files() -> None:
    cells = read_grid(preset("protocols"))
    assert {cell.profile for cell in cells} == set(ALL_PROFILES)
    assert len({cell.members for cell in cells}) > 1
    assert len({cell.loss_percent for cell in cells}) > 2
    assert [cell.kind for cell in read_grid(preset("hunt"))] == ["told", "membership"]


def test_the_code_has_a_digest() -> None:
    assert len(code_digest()) == 16
    assert code_digest() == code_digest()


WRONG = {
    "no TOML": ("[grid", "not valid TOML"),
    "nothing": ("", "neither a table"),
    "a slip in a table": ("[gird]\nloss = 1", "did you mean 'grid'?"),
    "no table at all": ("loss = [1]", "is the line [grid] missing"),
    "a table that is none": ("grid = 3", "expected a table"),
    "a slip in a knob": ("[grid]\ncapacty = 4", "did you mean 'capacity'"),
    "a slip in an axis": ("[grid]\nmember = 4", "'members'"),
    "a profile that is none": ("[grid]\nprofile = ['nakak4']", "did you mean 'nakack4'?"),
    "a profile that is a number": ("[grid]\nprofile = 4", "profile = 4"),
    "a bad value": ("[grid]\ncapacity = [64, 0]", "capacity = 0: expected a whole number from 1"),
    "a duration without a unit": ("[grid]\nxmit_interval = 100", '"100ms"'),
    "a pair that does not fit": (
        "[grid]\ncapacity = [4, 64]\nack_threshold = 16",
        "ack_threshold = 16, capacity = 4",
    ),
    "no value": ("[grid]\nloss = []", "loss has no value"),
    "too much loss": ("[grid]\nloss = 51", "0 to 50"),
    "loss in words": ("[grid]\nloss = 'much'", "loss = 'much'"),
    "no number": ("[grid]\nloss = nan", "loss = nan"),
    "one member": ("[grid]\nmembers = 1", "from 2 to 26"),
    "half a member": ("[grid]\nmembers = 2.5", "members = 2.5"),
    "true": ("[grid]\nmembers = true", "members = True"),
    "work in the grid": ("[grid]\nmessages = 4", "belongs to the table [work]"),
    "grid in the work": ("[grid]\n[work]\nloss = 4", "belongs to the table [grid]"),
    "a slip in the work": ("[grid]\n[work]\nmesages = 4", "did you mean 'messages'?"),
    "work alone": ("[hunt]\n[work]\nmessages = 4", "there is no [grid]"),
    "a pace that is too slow": ("[grid]\n[work]\npace = '2s'", 'from "1us" to "1s"'),
    "a pace without a unit": ("[grid]\n[work]\npace = 2", "pace = 2"),
    "a size that is none": ("[grid]\n[work]\nsize = '3 apples'", "unknown unit 'apples'"),
    "unicast": ("[grid]\nunicast = 'unicast3'", "unicast is not an axis"),
    "knobs in a hunt": ("[hunt]\ncapacity = 4", "the seed draws the settings"),
    "groups that are none": ("[hunt]\ngroups = 'membershop'", "did you mean 'membership'?"),
    "too many cells": (
        (
            f"[grid]\ncapacity = {list(range(1, 401))}\nxmit_interval = "
            f"{[f'{ms}ms' for ms in range(10, 311)]}"
        ),
        f"400 x 301 make 120,400 cells; the maximum is {MAX_CELLS:,}",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_grid_file_cannot_say(name: str, tmp_path: Path) -> None:
    text, said = WRONG[name]
    file = tmp_path / "grid.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_grid(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_grid(tmp_path / "none.toml")


def test_a_preset_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"there are protocols, hunt; did you mean 'hunt'\?"):
        preset("hunts")
    assert list(PRESETS) == ["protocols", "hunt"]
