"""Example of a policy in Python: the shortest predicted output first.

    python scripts/examples/shortest_first.py

Prints mean end-to-end latencies next to first come, first served; see docs/own-policy.md.
"""

from __future__ import annotations

from typing import Any

import kvgym


@kvgym.register_policy
class ShortestFirst(kvgym.Policy):
    """Admit the shortest predicted outputs first, as long as their prompts fit with the next tokens."""

    info = kvgym.PolicyInfo(
        name="shortest_first",
        summary="shortest predicted output first",
        needs=frozenset({"predicted_length"}),
        evicts=True,
    )

    def __init__(self, *, spare: float = 0.1) -> None:
        self.spare = spare

    def schedule(self, view: Any) -> kvgym.Decision:
        """Return the requests to evict, or else those to admit."""
        active, waiting = view.active, view.waiting
        need = int(view.allocated(active.num_kv_tokens + 1).sum())
        if need > view.kv_capacity:  # evict the newest
            newest = active.request_id[::-1]
            held = view.allocated(active.num_kv_tokens[::-1] + 1).cumsum()
            return kvgym.Decision(evict=newest[: 1 + int((held < need - view.kv_capacity).sum())].tolist())
        first = view.allocated(waiting.prompt_len + waiting.num_output_tokens + 1)
        admit = []
        for j in waiting.predicted_output_len.argsort(kind="stable"):
            need += int(first[j])
            if need > (1 - self.spare * bool(admit or len(active))) * view.kv_capacity:
                break
            admit.append(int(waiting.request_id[j]))
        return kvgym.Decision(admit=admit)


def main() -> None:
    """Compare it on a small system."""
    system = kvgym.System(
        kv_capacity=2000, batch_time=kvgym.make_batch_time({"kind": "affine", "constant": 0.02})
    )
    requests = kvgym.make_workload("lmsys", num_requests=200, rate=40).sample(seed=0)
    for name in ("shortest_first", "shortest_first:spare=0.2", "fcfs"):
        result = kvgym.simulate(system, requests, name)
        print(name, kvgym.compute_metrics(result)["e2e_latency_mean"])


if __name__ == "__main__":
    main()
