"""The reproduction of the stability paper runs, prints the published figures and draws the picture."""

import json

import numpy as np
import pytest

from kvgym.experiments.scenario import load_scenario


@pytest.fixture
def setting(reproduce):
    return reproduce("papers.stab.setting")


def test_quick_run(reproduce, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    reproduce("stab").main(["--quick", "--out", "out", "--figure", "stab.png"])
    text = capsys.readouterr().out
    assert "= 25.808 (printed 25.808)" in text
    for heading in ("printed rates", "Queues below and above", "Measured rates", "Provisioning"):
        assert heading in text
    assert "nan" not in text
    found = json.loads((tmp_path / "out" / "stab.json").read_text())
    assert len(found["queues"]) == 3 * 2 * 4 + 2 * 2
    for label, figures in found["queues"].items():
        if "1.1 μ" in label:
            assert figures["work slope"]["value"] > 0
    assert (tmp_path / "stab.png").stat().st_size < 150_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "stab.png"]


def test_printed_rates_follow_within_two_per_cent(setting):
    for name, (batch_time, printed, _) in setting.PRINTED.items():
        for chunk in (128, 256, 512, 4096):
            assert setting.rate_of(name, batch_time, chunk) == pytest.approx(printed, rel=0.02)
    assert 8 * setting.PRINTED["stab-1-1"][1] == pytest.approx(setting.PRINTED_8_GPUS[0], abs=5e-4)


def test_scenarios_carry_the_printed_batch_times(setting):
    for name, (batch_time, _, _) in setting.PRINTED.items():
        system = load_scenario(name).make_system()
        assert system.batch_time(num_decodes=100, decode_context=100_000) == batch_time
        assert (system.kv_capacity, system.first_token, system.progress_on_evict) == (
            setting.M,
            "uncounted",
            "kept",
        )
    assert len(load_scenario("stab-8-gpus").make_system().all_workers) == 8


def test_waiting_work_counts_what_has_arrived_and_not_started(reproduce, setting):
    queues = reproduce("papers.stab.queues")
    result = queues.run_queue("stab-1-1", setting.FCFS, 6.0, 3, 80)
    arrival, start = result.table.arrival_time, result.requests["start_time"]
    work = np.arange(80.0)
    times = np.linspace(0, arrival[-1], 7)
    expected = [((arrival <= t) & (start > t)) for t in times]
    np.testing.assert_array_equal(queues.waiting_work(result, times), [e.sum() for e in expected])
    np.testing.assert_array_equal(queues.waiting_work(result, times, work), [work[e].sum() for e in expected])
