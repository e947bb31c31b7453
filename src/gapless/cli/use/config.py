"""``gapless config``: print, check and explain every setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gapless.cli.rendering import (
    config_options,
    console,
    json_option,
    make_table,
    print_json,
    read_config,
)

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@config_options
@json_option
def config(
    profile: str | None, config_file: Path | None, properties: str | None, as_json: bool
) -> None:
    """Check a configuration and explain every setting.

    Without options the command explains the default configuration.
    """
    settings = read_config(profile, config_file, properties)
    if as_json:
        print_json(settings.as_dict())
        return
    rows = [
        (row.key, row.value, row.default, row.allowed, row.meaning) for row in settings.explain()
    ]
    console().print(
        make_table("Settings", ("setting", "value", "default", "allowed", "meaning"), rows)
    )
