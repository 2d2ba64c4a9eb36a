"""Two folders of scripts have a module ``harness``: importing one leaves nothing behind for the other."""

import sys
from pathlib import Path

import pytest

from fuzz.result_kinds import OUTCOME
from helpers.script_folders import SCRIPTS, importing_from


def test_each_folder_has_its_own(tmp_path):
    OUTCOME.play(OUTCOME.seeds()[0], tmp_path)
    before = list(sys.path)
    for name in ("speed", "reproduce", "speed"):
        assert "harness" not in sys.modules
        with importing_from(name) as load:
            assert SCRIPTS / name in Path(load("harness").__file__).parents
        assert sys.path == before


def load_what_is_not_there():
    with importing_from("speed") as load:
        load("harness")
        load("no_such_script")


def test_nothing_is_left_where_an_import_fails():
    before = list(sys.path)
    with pytest.raises(ModuleNotFoundError, match="no_such_script"):
        load_what_is_not_there()
    assert "harness" not in sys.modules
    assert sys.path == before
