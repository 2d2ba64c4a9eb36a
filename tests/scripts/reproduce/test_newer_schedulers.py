"""The page of the newer schedulers: made from stored figures alone, byte for byte."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(scope="module")
def newer(reproduce):
    return reproduce("newer_schedulers")


@pytest.fixture(scope="module")
def figures(newer):
    return json.loads((DOCS / newer.FIGURES).read_text("utf-8"))


def test_the_page_is_made_from_stored_figures_alone(newer, figures, reproduce, tmp_path):
    write_block = reproduce("harness.pages").write_block
    text = (DOCS / newer.PAGE).read_text("utf-8")
    blocks = newer.blocks_of(figures)
    assert {line.split()[2] for line in text.splitlines() if line.startswith("<!-- begin ")} == set(blocks)
    for name in blocks:
        text = write_block(text, name, "")
    (tmp_path / "reproductions" / "outcomes").mkdir(parents=True)
    (tmp_path / newer.PAGE).write_text(text, "utf-8")
    (tmp_path / newer.FIGURES).write_text(json.dumps(figures), "utf-8")
    newer.main(["--kept", "--docs", str(tmp_path)])
    for file in (newer.PAGE, newer.FIGURES):
        assert (tmp_path / file).read_bytes() == (DOCS / file).read_bytes(), file


def test_every_policy_is_on_every_workload(newer, figures):
    assert set(figures["tables"]) == set(newer.WORKLOADS)
    for rows in figures["tables"].values():
        assert {row["policy"].partition(":")[0] for row in rows} == set(newer.SETTINGS)
        for row in rows:
            name = row["policy"].partition(":")[0]
            assert row["policy"] in (newer.specs_of(name) if "ttft_mean" in row else [name])  # livelock
            assert row["seeds"] >= 5


def test_verdicts_by_hand(newer):
    shown = [
        newer.verdict_of(figure, 2.0).value for figure in ([1.9, 1.8, 2.0], [1.5, 1.1, 1.9], [1.1, 0.9, 1.3])
    ]
    assert shown == ["reproduced", "with conditions", "not reproduced"]
    assert newer.shown([7455.0, 0.8984, 12345.6]) == "7,455 (0.898 – 12,350)"


def test_clients_are_the_outermost_prefixes(newer):
    hashes = BlockHashes.from_rows([[7, 1], [3], [7, 2]], [8, 4, 8], 4)
    table = RequestTable([0, 0, 0], [8, 4, 8], [1] * 3, hashes=hashes)
    clients = newer.with_clients(table).client_id
    np.testing.assert_array_equal(clients[0] == clients, [True, False, True])
