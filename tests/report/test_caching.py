"""The figure of the prefix cache."""

import numpy as np

from kvgym.batch_time import UnitBatchTime
from kvgym.policies.contract.cases import requests, with_common_prefixes
from kvgym.policies.runner import simulate
from kvgym.report import caching
from kvgym.simulator.system import System

TABLE = with_common_prefixes(requests(1, 40), 2, 1)


def run(**settings):
    return simulate(System(40, UnitBatchTime(), **settings), TABLE, "fcfs", log=True, compiled=False)


def test_shares_over_time():
    result = run(prefix_cache="computed", prefix_block=2)
    top, bottom = caching.cache_use({"fcfs": result}).panels
    share, cached = (panel.series[0].values for panel in (top, bottom))
    log = result.log
    assert log["hit_tokens"].sum() > 0
    first = log[log["start_time"] < share["x"][1]]
    assert share["y"][0] == first["hit_tokens"].sum() / max(
        first["hit_tokens"].sum() + first["prefill_tokens"].sum(), 1
    )
    assert 0 < share["y"].max() <= 1
    assert cached["y"].max() == log["kv_cached"].max() / 40
    assert np.all(cached["y"] <= 1)


def test_only_runs_with_a_cache_have_it():
    assert caching.is_cached({"fcfs": run(prefix_cache="computed")})
    assert not caching.is_cached({"fcfs": run()})
