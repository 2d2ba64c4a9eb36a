"""The example of docs/planning.md: rollouts are at least as good as their base policy."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


def test_rollouts_improve_on_their_base_policy(capsys):
    states, rollouts = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(compile(states, str(PAGE), "exec"), {})
    found = {}
    exec(compile(rollouts, str(PAGE), "exec"), found)
    assert capsys.readouterr().out.startswith("mean latency: ")
    assert found["planned"] > found["base"]
    base, planned = (
        found["play"](found["env"], choose, seed=1)
        for choose in (lambda env, mask: int(mask.sum()) - 1, found["rollout_action"])
    )
    assert planned >= base
