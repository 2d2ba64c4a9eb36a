"""Names from users are escaped everywhere in reports of sweeps."""

import re

from kvgym.studies import write_sweep_report
from kvgym.utils.frame import Frame

from .conftest import HOSTILE

METRICS = ("e2e_latency_mean", "ttft_p99", "tbt_p99", "token_throughput")


def test_hostile_names_of_columns_policies_values_and_notes(tmp_path):
    field = f"workload.{HOSTILE}"
    rows = [
        {
            field: value, "policy": policy, "seed": seed, "error": HOSTILE if seed else "", "num_requests": 5,
            **dict.fromkeys(METRICS, float("nan") if seed else 1.0 + k),
        }
        for k, value in enumerate((HOSTILE, "<img src=x onerror=alert(1)>"))
        for policy in (HOSTILE, "</script><b>")
        for seed in (0, 1)
    ]  # fmt: skip
    path = write_sweep_report(
        Frame.from_rows(rows), (field,), tmp_path / "report.html", metrics=("e2e_latency_mean",),
        title=HOSTILE, lead=HOSTILE, notes=[HOSTILE], command=HOSTILE, configuration={HOSTILE: HOSTILE},
    )  # fmt: skip
    text = path.read_text("utf-8")
    assert "alert(" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "<b>" not in text
    assert len(re.findall(r"<script\b", text)) == len(re.findall(r"</script>", text))
    assert len(re.findall(r"<script\b", text)) <= 2
