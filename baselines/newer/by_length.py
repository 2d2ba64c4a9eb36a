"""Schedulers in the order of predicted lengths, of distributions of lengths, or of the service so far.

All share :mod:`kvgym.baselines.newer.ordered`, which has the readings that concern memory.

- ``learned_rank``: Y. Fu et al., "Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024, arXiv 2408.15792, and
  its repository (hao-ai-lab/vllm-ltr, ``_get_opt_ordered_requests``): shortest predicted rank first among waiting and
  running requests; one that was not served for 200 iterations goes first for 10. PARS (arXiv 2509.25655) has the same
  order with another predictor. Only the order of the predictions counts, so any predictor may give them.
- ``tie``: H. Zheng et al., "Scheduling LLM Inference with Uncertainty-Aware Output Length Predictions", arXiv
  2604.00499, and its repository (Hyzheng-code/TIE, ``ua_predictor.py``): E[X] + β CVaR_0.9[X] with β = min(0.5,
  max(0.1, 0.1 Lq / B)), Lq waiting requests and B requests of a batch, ascending, without preemption. Deviation: the
  mean and the tail are those of ten lengths, not of 10,000 samples; after an eviction β is the new arrival's in
  the queue.
- ``trail``: R. Shahout et al., "Don't Stop Me Now: Embedding Based Scheduling for LLMs", arXiv 2410.01035: least
  predicted remaining length first, with predictions renewed while decoding; a request may be preempted only while it
  has generated fewer than C times its first prediction.
- ``bounded_srpt``: shortest remaining length first, at most a number of preemptions of a request; not from a paper.
- ``gamma_boost``: G. Yu, Z. Scully, "Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1", arXiv 2404.08826:
  first come, first served by the arrival time minus a boost, b(s) = ln(1 / (1 - e^(-γ s))) / γ for a job of size s,
  without preemption. Readings: a job's size is its predicted output times ``token_time`` seconds, since a batch
  serves many at once and has no other size. The scheduler of Li et al., "Beyond Prediction: Tail-Aware Scheduling for
  LLM Inference", arXiv 2606.18431, builds on it with statistics in place of sizes and with preemption, which the
  public abstract and project page do not define; it is not part of kvgym.
- ``after_sagesched``: after "SageSched: Efficient LLM Scheduling Confronting Demand Uncertainty and Hybridity", arXiv
  2603.07917. Its abstract names a distribution of the output from past results, a cost of compute and memory, and a
  policy that regards the distribution of the cost; the definitions were not at hand. Here the cost of x output
  tokens after a prompt of s is the KV memory held over the iterations, x (s + x / 2), and the policy is the Gittins
  index. Tokens that an eviction lost count as generated, since the distribution of the length remains conditional on
  them.
- ``fast_serve``: B. Wu et al., "Fast Distributed Inference Serving for Large Language Models", arXiv 2305.05920,
  Section 4.1: a skip-join multi-level feedback queue. A request joins the first level with a quantum of at least its
  prefill time and falls to the end of the next one when it has used its quantum; levels are served in order, first
  come, first served in each, so that one that falls makes room for those that wait in its new level; requests that
  have waited too long return to the top. Readings: quanta double from level to level, the first is the
  time of a token; times are given per token (``token_time``, ``prompt_time``), as if a request ran alone; waiting is
  counted in iterations. The paper moves the KV of preempted requests to the CPU, which is
  ``progress_on_evict="kept"`` of the system.
"""

from __future__ import annotations

import math

from kvgym.baselines.margins import PROTECTION
from kvgym.baselines.newer.ordered import (
    BY_BOOST,
    BY_GITTINS,
    BY_LENGTH,
    BY_LEVEL,
    BY_RENEWED_REST,
    BY_REST,
    BY_TAIL,
    Ordered,
)
from kvgym.policies.hyperparameters import (
    hyperparameter,
    positive,
    whole,
)
from kvgym.policies.policy import PolicyInfo, register_policy


@register_policy
class LearnedRank(Ordered):
    """Shortest predicted rank first with preemption and a guard against starvation."""

    info = PolicyInfo(
        name="learned_rank",
        summary="shortest predicted rank first, preemptive; a guard against starvation",
        paper="Fu et al., Efficient LLM Scheduling by Learning to Rank",
        algorithm="and its repository, hao-ai-lab/vllm-ltr",
        needs=frozenset({"predicted_length"}),
        evicts=True,
        drafts=True,
    )
    score = BY_LENGTH
    preempts = True

    guard: int = whole(200, least=0, search=(0, 50, 200, 1000))
    """iterations that a request waits before it goes first; 0 = no guard."""
    period: int = whole(10, least=0)
    """iterations that it then runs without being preempted; if it is shorter than requests run, those that the guard
    helps can evict each other for ever."""
    protection: float = PROTECTION


@register_policy
class Tie(Ordered):
    """Least tail-inflated expectation first, without preemption."""

    info = PolicyInfo(
        name="tie",
        summary="least expected output plus a share of its tail first (TIE), without preemption",
        paper="Zheng et al., Scheduling LLM Inference with Uncertainty-Aware Output Length Predictions",
        algorithm="Equations 11 and 12",
        needs=frozenset({"length_distribution"}),
        evicts=True,
        drafts=True,
    )
    score = BY_TAIL

    batch: int = whole(32, search=(8, 32, 128))
    """requests of a full batch, B in β."""
    protection: float = PROTECTION

    def numbers(self) -> tuple[float, float]:
        """Return B."""
        return float(self.batch), 0.0


@register_policy
class Trail(Ordered):
    """Least remaining length by renewed predictions first; preemption only of young requests."""

    info = PolicyInfo(
        name="trail",
        summary="least remaining length by renewed predictions first; preempts only young requests",
        paper="Shahout et al., Don't Stop Me Now: Embedding Based Scheduling for LLMs",
        algorithm="SPRPT with limited preemption",
        needs=frozenset({"predicted_length", "renewed_length"}),
        evicts=True,
        drafts=True,
    )
    score = BY_RENEWED_REST
    preempts = True

    share: float = hyperparameter(
        0.8,
        lambda value: isinstance(value, int | float) and 0 <= value <= 1,
        "a number in [0, 1]",
        search=(0.0, 0.2, 0.5, 0.8, 1.0),
    )
    """share C of the first prediction, 0 (never) to 1; the paper's experiments have 0.8."""
    protection: float = PROTECTION

    def numbers(self) -> tuple[float, float]:
        """Return C."""
        return self.share, 0.0


@register_policy
class BoundedSRPT(Ordered):
    """Shortest remaining length first; a request is preempted at most a number of times."""

    info = PolicyInfo(
        name="bounded_srpt",
        summary="shortest predicted remaining length first; preempts a request a bounded number of times",
        needs=frozenset({"predicted_length"}),
        evicts=True,
        drafts=True,
    )
    score = BY_REST
    preempts = True

    most: int = whole(1, least=0, search=(0, 1, 2, 4))
    """evictions of a request after which it is not preempted any more, at least 0."""
    protection: float = PROTECTION

    def numbers(self) -> tuple[float, float]:
        """Return the bound."""
        return float(self.most), 0.0


@register_policy
class GammaBoost(Ordered):
    """Earliest boosted arrival first, without preemption."""

    info = PolicyInfo(
        name="gamma_boost",
        summary="earliest arrival less a boost for short requests first (γ-Boost), without preemption",
        paper="Yu, Scully, Strongly Tail-Optimal Scheduling in the Light-Tailed M/G/1",
        algorithm="γ-Boost",
        needs=frozenset({"predicted_length"}),
        evicts=True,
        drafts=True,
        loads=True,
    )
    score = BY_BOOST

    gamma: float = positive(0.1, search=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0))
    """γ, per second, > 0: the smaller, the closer to shortest first; the larger, the closer to FCFS."""
    token_time: float = positive(0.01)
    """seconds of service of an output token, > 0."""
    protection: float = PROTECTION

    def numbers(self) -> tuple[float, float]:
        """Return γ and the time of a token."""
        return self.gamma, self.token_time


@register_policy
class AfterSageSched(Ordered):
    """Least Gittins index of the memory cost of a predicted distribution first, with preemption."""

    info = PolicyInfo(
        name="after_sagesched",
        summary="least Gittins index of compute and memory by predicted distributions first, preemptive",
        paper="after SageSched: Efficient LLM Scheduling Confronting Demand Uncertainty and Hybridity",
        needs=frozenset({"length_distribution"}),
        evicts=True,
        drafts=True,
    )
    score = BY_GITTINS
    preempts = True


@register_policy
class FastServe(Ordered):
    """Skip-join multi-level feedback queue."""

    info = PolicyInfo(
        name="fast_serve",
        summary="skip-join multi-level feedback queue: least service so far first, preemptive",
        paper="Wu et al., Fast Distributed Inference Serving for Large Language Models",
        algorithm="Section 4.1, skip-join MLFQ",
        evicts=True,
    )
    score = BY_LEVEL
    preempts = True

    token_time: float = positive(0.01, search=(0.003, 0.01, 0.03, 0.1))
    """seconds of an output token, the first quantum, > 0."""
    prompt_time: float = hyperparameter(
        0.0001,
        lambda value: isinstance(value, int | float) and 0 <= value < math.inf,
        "a number ≥ 0",
        kept=float,
    )
    """seconds of a prompt token, ≥ 0."""
    guard: int = whole(200, least=0, search=(0, 200, 1000))
    """iterations that a request waits before it returns to the top; 0 = no guard."""
    period: int = whole(10, least=0)
    """iterations that it then runs without being preempted."""
    protection: float = PROTECTION

    def numbers(self) -> tuple[float, float]:
        """Return the times."""
        return self.token_time, self.prompt_time
