"""The tables of a learned router."""


def test_every_cluster_and_prediction_has_a_row(fleets, capsys):
    script = fleets("compare_routers")
    script.main(
        ["routing", "--policy", "fcfs", "--others", "weighted:pace=2.0", "round_robin", "--loads", "0.5",
         "--seeds", "2", "--num-requests", "20"]
    )  # fmt: skip
    text = capsys.readouterr().out
    assert "better than `weighted:pace=2.0`" in text
    assert text.count("load 0.5") == len(script.CLUSTERS) * len(script.PREDICTIONS)
