"""Read and draw the learning curves of training folders."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.agents.evolution.objective import improvement
from kvgym.agents.runs.checkpoints import checkpoints, latest_checkpoint
from kvgym.agents.runs.config import read_run_config
from kvgym.errors import ConfigError, shown
from kvgym.metrics.catalogue import metric_info
from kvgym.utils.files import whole_file
from kvgym.utils.reading import read_text


def read_curve(folder: Path) -> dict[str, Any]:
    """Return the learning curve of a training run, JSON-able.

    Evolution: ``x`` in CPU minutes; ``y`` is the gain of the best centre so far over the references of the held-out
    services, in per cent of the objective. Gradients: ``x`` in million environment steps, or CPU minutes of
    ``reinforce``; ``y`` is the evaluation metric, and ``baselines`` its value for each baseline on the same requests.

    Args:
        folder: of ``kvgym train``.

    Raises:
        ConfigError: it has no readable curve.
    """
    config: Any = read_run_config(folder)
    path = folder / "curve.csv"
    try:
        rows: Any = list(csv.DictReader(read_text(path, "curve").splitlines()))
        if not rows:
            raise ConfigError(f"{folder}: curve.csv has no evaluations yet")
        return _curve(folder, config, rows)
    except KeyError as error:
        raise ConfigError(f"curve {path}: column {error} is missing") from None
    except (csv.Error, TypeError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"curve {path}: not as training writes it: {error}") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"curve {path}: not as training writes it: {error}") from None


def _curve(folder: Path, config: Any, rows: list[dict[str, str]]) -> dict[str, Any]:
    """Return the learning curve in the rows of ``curve.csv``."""
    steps = next(iter(rows[0]))  # the first column
    found = {
        "folder": folder.name, "training": config.name, "seed": config.seed, "rows": len(rows),
        "length": int(rows[-1][steps]), "unit": config.units,
    }  # fmt: skip
    if config.UNIT == "step":
        found |= {"x_label": "million environment steps", "x": [int(row[steps]) / 1e6 for row in rows]}
    else:
        found |= {"x_label": "CPU minutes", "x": [float(row["cpu_seconds"]) / 60 for row in rows]}
    if config.UNIT == "generation":
        gains = [improvement(float(row["best"]), config.metric) for row in rows]
        return {**found, "higher_is_better": True, "y_label": "better on held-out services (%)", "y": gains}
    metric = config.evaluation.metric
    return {
        **found, "higher_is_better": not metric_info(metric).lower_is_better, "y_label": metric,
        "y": [float(row[metric]) for row in rows], "baselines": _baselines(folder, metric),
    }  # fmt: skip


def _baselines(folder: Path, metric: str) -> dict[str, float]:
    """Return the metric of each baseline from the latest checkpoint; empty if there is none."""
    places = checkpoints(folder / "checkpoints")
    measured = latest_checkpoint(folder / "checkpoints")[1].get("baselines", {}) if places else {}
    if not isinstance(measured, dict) or not all(isinstance(values, dict) for values in measured.values()):
        raise ConfigError(f"{folder}: the latest checkpoint has damaged baselines: {shown(measured)}")
    return {label: values[metric] for label, values in measured.items() if values.get(metric) is not None}


def draw_curves(curves: Sequence[Mapping[str, Any]], figure: Path) -> None:
    """Draw curves, a panel per training configuration, a colour per seed.

    Points are evaluations and lines the best so far; dashed lines are the baselines to beat on the same requests.

    Raises:
        ConfigError: there are no curves, or Matplotlib is not installed.
    """
    if not curves:
        raise ConfigError("no learning curves to draw; give folders of kvgym train")
    try:
        import matplotlib
    except ImportError:
        raise ConfigError('drawing curves needs Matplotlib: pip install "kvgym[pictures]"') from None
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    from kvgym.report.style import DASHES, INK, PALETTE, styled

    @styled
    def draw() -> None:
        names = list(dict.fromkeys(curve["training"] for curve in curves))
        fig, axes = plt.subplots(
            1, len(names), figsize=(5.6 * len(names), 3.6), squeeze=False, layout="constrained"
        )
        for axis, name in zip(axes[0], names, strict=True):
            panel = [curve for curve in curves if curve["training"] == name]
            for curve, colour in zip(panel, itertools.cycle(PALETTE)):
                label = f"training seed {curve['seed']}, best so far"
                axis.plot(curve["x"], curve["y"], "o", color=colour, markersize=2.5, alpha=0.5)
                axis.step(curve["x"], best_so_far(curve), where="post", color=colour, label=label)
                axis.set(title=name, xlabel=curve["x_label"], ylabel=curve["y_label"])
            rivals = {label: y for curve in panel for label, y in curve.get("baselines", {}).items()}
            for (label, value), dashes in zip(rivals.items(), itertools.cycle(DASHES[1:])):
                axis.axhline(value, color=INK, linewidth=1.0, linestyle=dashes, label=label)
            axis.legend(fontsize=8)
        with whole_file(figure) as place:
            fig.savefig(place, dpi=130)
        plt.close(fig)

    draw()


def best_so_far(curve: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the best evaluation up to each one, float64 (n,); NaN before the first that succeeds."""
    best = np.fmax if curve["higher_is_better"] else np.fmin
    return np.asarray(best.accumulate(np.asarray(curve["y"], np.float64)))
