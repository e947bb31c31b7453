"""The examples of docs/guides/spark-reading.md are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.identity import Address
from gapless.keys.keyring import Keyring
from pyspark_gapless.message_columns import COLUMNS
from pyspark_gapless.source import options
from tests.support import spools

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides/spark-reading.md"


def test_the_page_lists_every_option_and_every_column() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert set(options.KNOWN_OPTIONS.values()) - {"path"} <= told
    assert COLUMNS.keys() <= told


@pytest.mark.xdist_group("spark")
def test_the_examples_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Address(0x5, 1)
    monkeypatch.setitem(spools.NAMES, shop, "shop")
    writer = spools.Writer(tmp_path / "spool")
    writer.runs(spools.A, 250)
    writer.run(shop, [b'{"id": 1, "at": "2026-01-31T12:00:00Z", "items": ["tea"]}', b"?"])
    writer.commit()
    writer.close()
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(examples) == 5
    Keyring.new(cipher="aes-256-gcm").create(tmp_path / "spool-keys.toml")
    names: dict[str, object] = {}
    for example in examples:
        here = re.sub(r"/(data|etc/gapless)/", f"{tmp_path}/", example)
        exec(compile(here, PAGE.name, "exec"), names)
    assert spark.read.parquet(str(tmp_path / "table")).count() == 252
