"""The figure of the prefix cache."""

import numpy as np

from kvgym.batch_time import UnitBatchTime, make_batch_time
from kvgym.policies.contract.cases import requests, with_common_prefixes
from kvgym.policies.runner import simulate
from kvgym.report import caching
from kvgym.simulator.drafts.settings import Speculation
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


def test_drafts_over_time():
    model, speculation = (
        make_batch_time({"kind": "affine", "constant": 1.0, "per_decode_token": 0.1}),
        Speculation(depth=3),
    )
    system = System(40, model, progress_on_evict="recompute", speculation=speculation)
    result = simulate(system, requests(1, 20), "fcfs", log=True, compiled=False)
    assert caching.speculates({"fcfs": result})
    assert not caching.speculates({"fcfs": run()})
    top, bottom = caching.draft_use({"fcfs": result}).panels
    depth, rate = (panel.series[0].values["y"] for panel in (top, bottom))
    assert 0 < depth.max() <= 3
    assert 0 < rate.max() <= 1
    assert result.log["draft_tokens"].sum() > result.log["accepted_tokens"].sum() > 0
