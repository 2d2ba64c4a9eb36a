"""Learning curves: the best so far."""

import numpy as np

from kvgym.agents.curves import best_so_far, draw_curves

NAN = float("nan")


def test_the_best_so_far_follows_the_direction_of_the_metric():
    values = [NAN, 5.0, 6.0, NAN, 4.0, 7.0]
    down = best_so_far({"y": values, "higher_is_better": False})
    np.testing.assert_array_equal(down, [NAN, 5.0, 5.0, 5.0, 4.0, 4.0])
    up = best_so_far({"y": values, "higher_is_better": True})
    np.testing.assert_array_equal(up, [NAN, 5.0, 6.0, 6.0, 6.0, 7.0])


def test_a_picture_is_drawn(tmp_path):
    curve = {
        "training": "mine", "seed": 0, "x": [0.0, 1.0], "y": [3.0, 2.0], "x_label": "CPU minutes",
        "y_label": "e2e_latency_mean", "higher_is_better": False, "baselines": {"fcfs": 2.5, "ranked": 1.5},
    }  # fmt: skip
    draw_curves([curve, curve | {"seed": 1}, curve | {"training": "other"}], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
