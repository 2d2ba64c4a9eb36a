"""Stability of a worker under a KV-cache limit: service rate, slack, and how many workers a load needs.

Source throughout: "A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory
Constraints" (anonymous authors; the STAB paper). Symbols: s prompt length, o output length, ŝ tokens per
prefill chunk, M KV tokens that a worker processes per slot, b̄ seconds per slot (the typical batch time).
M is the memory that can be *processed* at once; if swapping to the CPU costs nothing, that is all of it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import ConfigError, shown
from kvgym.theory.checks import check_number, check_numbers
from kvgym.utils.arguments import explained
from kvgym.workloads.table import RequestTable

if TYPE_CHECKING:
    from kvgym.policies.runner import SimulationResult

__all__ = [
    "ESTIMATORS",
    "batch_durations",
    "cumulative_memory",
    "implied_batch_time",
    "is_overloaded",
    "is_stable",
    "mean_cumulative_memory",
    "mean_cumulative_memory_uniform",
    "memory_slack",
    "outstanding_memory",
    "provision",
    "service_rate",
    "typical_batch_time",
]

ESTIMATORS: dict[str, int | None] = {"median": None, "mean": 0, "trimmed_5": 5, "trimmed_10": 10}
"""Estimators of b̄ by name: per cent of the batches, the longest ones, left out of a mean; None = median."""


@explained
def cumulative_memory(
    prompt_len: ArrayLike, output_len: ArrayLike, chunk: int, *, closed_form: bool = False
) -> NDArray[Any]:
    """Return g(s, o): KV tokens of a request, summed over all its iterations.

    The prefill holds ŝ, 2ŝ, … and finally s tokens, one chunk after the other; the decodes then hold
    s + 1, …, s + o (Section 4).

    Args:
        prompt_len: tokens, whole numbers >= 1, any shape.
        output_len: tokens, whole numbers >= 1, a shape that broadcasts with it.
        chunk: prompt tokens per prefill iteration, >= 1.
        closed_form: return ((1 + s/ŝ)s + 2os + (1 + o)o) / 2 as printed, also where ŝ does not divide s.
            The paper assumes that it does; elsewhere the last chunk is shorter and the printed form is below
            the sum, which is the default.

    Returns:
        int64 array of the broadcast shape, float64 with ``closed_form``.

    Raises:
        ConfigError: a length or the chunk is not a whole number >= 1.
    """
    prompt, output = _lengths("prompt_len", prompt_len), _lengths("output_len", output_len)
    size = int(_lengths("chunk", chunk))
    decode = output * prompt + output * (output + 1) // 2
    if closed_form:
        return np.asarray((1 + prompt / size) * prompt / 2 + decode)
    return np.asarray(_prefill_memory(prompt, size) + decode)


@explained
def outstanding_memory(
    prompt_len: ArrayLike,
    output_len: ArrayLike,
    chunk: int,
    prefilled: ArrayLike,
    generated: ArrayLike,
    *,
    printed: bool = False,
) -> NDArray[np.int64]:
    """Return v(t): KV tokens of a request, summed over its remaining iterations.

    The sum over all requests that have arrived, V(t), is the Lyapunov function of Theorem 2: a slot lowers it by the
    memory that its batch holds, an arrival raises it by g(s, o).

    Args:
        prompt_len: tokens, whole numbers >= 1, any shape.
        output_len: tokens, whole numbers >= 1.
        chunk: prompt tokens per prefill iteration, >= 1.
        prefilled: prompt tokens processed, a multiple of the chunk or the whole prompt; 0 = still waiting.
        generated: output tokens that decodes have written (d in the paper); 0 unless the prompt is done.
        printed: return v as in Appendix A, which starts its sums at c and d (already processed) instead of one later.
            This adds the memory held now, so that V follows one slot late; the theorem does not change.

    Returns:
        int64 array of the broadcast shape; 0 for a request that has finished, printed or not.

    Raises:
        ConfigError: a length or the chunk is not a whole number >= 1, or the progress is not possible.
    """
    prompt, output = _lengths("prompt_len", prompt_len), _lengths("output_len", output_len)
    size = int(_lengths("chunk", chunk))
    done = check_numbers("prefilled", prefilled, least=0, whole=True).astype(np.int64)
    made = check_numbers("generated", generated, least=0, whole=True).astype(np.int64)
    try:
        prompt, output, done, made = np.broadcast_arrays(prompt, output, done, made)
    except ValueError as error:
        raise ConfigError(f"prompt_len, output_len, prefilled and generated: {error}") from None
    if np.any((done > prompt) | ((done % size != 0) & (done < prompt))):
        raise ConfigError(
            f"prefilled: expected whole chunks of {size} tokens or the whole prompt, got {shown(prefilled)}"
        )
    if np.any((made > output) | ((made > 0) & (done < prompt))):
        raise ConfigError(
            f"generated: expected at most the output, and 0 during the prefill, got {shown(generated)}"
        )
    spent = _prefill_memory(done, size) + made * prompt + made * (made + 1) // 2
    left = cumulative_memory(prompt, output, size) - spent
    held = np.where(left > 0, done + made, 0) if printed else 0
    return np.asarray(left + held, dtype=np.int64)


@explained
def mean_cumulative_memory(requests: RequestTable, chunk: int) -> float:
    """Return E[g] over the requests of a table: the joint distribution p(s, o) is the empirical one."""
    return float(np.mean(cumulative_memory(requests.prompt_len, requests.output_len, chunk)))


@explained
def mean_cumulative_memory_uniform(
    prompt_len: tuple[int, int], output_len: tuple[int, int], chunk: int
) -> float:
    """Return E[g] for independent, discrete uniform lengths, summed exactly.

    The printed rates of Section 5 follow from independent lengths (1:1 U(10, 1600) twice; 2:1 U(10, 2133) and
    U(5, 1066); 1:2 U(10, 1066) and U(10, 2133)), as its Section 5.3 says for eight GPUs. They do not follow
    from Section 5.1, where the output length is a multiple of the prompt length: that gives less.

    Args:
        prompt_len: (lowest, highest) prompt length, tokens, both included.
        output_len: the same of the output length.
        chunk: prompt tokens per prefill iteration.

    Raises:
        ConfigError: a range is empty, or a number is not a whole number >= 1.
    """
    size = int(_lengths("chunk", chunk))
    prompt, output = _support("prompt_len", prompt_len), _support("output_len", output_len)
    prefill = Fraction(int(_prefill_memory(prompt, size).sum()), len(prompt))
    mean_prompt = Fraction(int(prompt.sum()), len(prompt))
    mean_output = Fraction(int(output.sum()), len(output))
    mean_triangle = Fraction(int((output * (output + 1) // 2).sum()), len(output))
    return float(prefill + mean_prompt * mean_output + mean_triangle)


def service_rate(kv_capacity: float, batch_time: float, mean_memory: float) -> float:
    """Return μ = M / (b̄ E[g]), requests per second, equation (1).

    Args:
        kv_capacity: M, KV tokens processed per batch.
        batch_time: b̄, seconds per batch.
        mean_memory: E[g], KV tokens times batches.

    Raises:
        ConfigError: a figure is not positive.
    """
    _positive(kv_capacity=kv_capacity, batch_time=batch_time, mean_memory=mean_memory)
    return kv_capacity / (batch_time * mean_memory)


def implied_batch_time(kv_capacity: float, rate: float, mean_memory: float) -> float:
    """Return the b̄ in seconds for which equation (1) gives a service rate: b̄ = M / (μ E[g]).

    Raises:
        ConfigError: a figure is not positive.
    """
    _positive(kv_capacity=kv_capacity, rate=rate, mean_memory=mean_memory)
    return kv_capacity / (rate * mean_memory)


def memory_slack(kv_capacity: float, longest: float) -> float:
    """Return δ = (largest s + o) / M, the share of M that Theorem 2 sets aside for the largest request.

    Args:
        kv_capacity: M, KV tokens.
        longest: the largest prompt plus output length of any request, tokens.

    Raises:
        ConfigError: a figure is not positive, or the request does not fit.
    """
    _positive(kv_capacity=kv_capacity, longest=longest)
    if longest > kv_capacity:
        raise ConfigError(f"a request of {longest} tokens does not fit into {kv_capacity} tokens of KV cache")
    return longest / kv_capacity


def is_stable(rate: float, service: float, slack: float) -> bool:
    """Whether λ < μ(1 − δ), the sufficient condition of Theorem 2.

    Between μ(1 − δ) and μ the theorems decide nothing: neither this nor :func:`is_overloaded` holds.

    Args:
        rate: λ, arrivals per second.
        service: μ, requests per second.
        slack: δ.
    """
    check_number("rate", rate, least=0)
    check_number("service", service, least=0)
    return rate < service * (1 - check_number("slack", slack, least=0, most=1))


def is_overloaded(rate: float, service: float) -> bool:
    """Whether λ > μ: under any policy the number of requests grows without bound (Theorem 1)."""
    return check_number("rate", rate, least=0) > check_number("service", service, least=0)


def provision(
    rate: float, service: float, *, utilisation: float | None = None, slack: float | None = None
) -> int:
    """Return how many equal workers a load needs.

    - As printed (Section 6): ⌈λ/μ⌉. With that many the load is not above the service rate, but may equal it
      or fall between μ(1 − δ) and μ, where stability is not proven.
    - With ``utilisation`` ρ (Section 4): ⌈λ/(μρ)⌉.
    - With ``slack`` δ: the least n with λ < nμ(1 − δ), so that Theorem 2 holds at every worker when the
      arrivals are split evenly at random, which leaves Poisson streams of rate λ/n.

    Numbers are read as the decimals they print as, so that no rounding error adds a worker.

    Args:
        rate: λ, arrivals per second at all workers together.
        service: μ of one worker, requests per second.
        utilisation: target ρ in (0, 1].
        slack: δ in [0, 1), see :func:`memory_slack`.

    Raises:
        ConfigError: a figure is out of range, or both ``utilisation`` and ``slack`` are given.
    """
    _positive(rate=rate, service=service)
    if utilisation is not None and slack is not None:
        raise ConfigError("give either utilisation or slack, not both")
    load = _decimal(rate) / _decimal(service)
    if slack is not None:
        check_number("slack", slack, least=0, below=1)
        return math.floor(load / (1 - _decimal(slack))) + 1
    if utilisation is not None:
        check_number("utilisation", utilisation, above=0, most=1)
        load /= _decimal(utilisation)
    return math.ceil(load)


@explained
def batch_durations(result: SimulationResult) -> NDArray[np.float64]:
    """Return the duration of every batch of a run, seconds, float64 (n,), in the order of the log.

    Iterations without any request (stalls) are not batches and are left out.

    Raises:
        ConfigError: the run kept no log.
    """
    if result.log is None:
        raise ConfigError("this run kept no per-iteration log; run it with log=True")
    rows = result.log[result.log["num_prefills"] + result.log["num_decodes"] > 0]
    return np.asarray(rows["end_time"] - rows["start_time"], dtype=np.float64)


@explained
def typical_batch_time(durations: ArrayLike, estimator: str = "median") -> float:
    """Return an estimate of b̄ from observed batches, seconds.

    Args:
        durations: seconds, shape (n,), n >= 1; see :func:`batch_durations` for those of a run.
        estimator: ``"median"`` (Section 5.1), ``"mean"``, or ``"trimmed_5"``/``"trimmed_10"``: the mean without
            the longest 5 or 10 per cent of the batches (Appendix C). Only the top is cut, not both ends as in
            the usual trimmed mean; the number cut is rounded down.

    Raises:
        ConfigError: an unknown estimator; no batches; a duration that is negative or not finite.
    """
    if estimator not in ESTIMATORS:
        raise ConfigError(f"unknown estimator {shown(estimator)}; valid: {', '.join(ESTIMATORS)}")
    seconds = np.sort(check_numbers("durations", durations, least=0).ravel())
    if not len(seconds):
        raise ConfigError("durations: expected at least one number of seconds, got none")
    cut = ESTIMATORS[estimator]
    if cut is None:
        return float(np.median(seconds))
    return float(seconds[: len(seconds) - len(seconds) * cut // 100].mean())


def _prefill_memory(prompt: NDArray[np.int64], chunk: int) -> NDArray[np.int64]:
    full, rest = np.divmod(prompt, chunk)
    return np.asarray(chunk * (full * (full + 1) // 2) + np.where(rest > 0, prompt, 0), dtype=np.int64)


def _support(name: str, bounds: tuple[int, int]) -> NDArray[np.int64]:
    low, high = (int(_lengths(name, bound)) for bound in bounds)
    if high < low:
        raise ConfigError(f"{name}: the range {shown(bounds)} is empty")
    return np.arange(low, high + 1, dtype=np.int64)


def _lengths(name: str, value: ArrayLike) -> NDArray[np.int64]:
    return check_numbers(name, value, least=1, whole=True).astype(np.int64)


def _positive(**figures: float) -> None:
    for name, value in figures.items():
        check_number(name, value, above=0)


def _decimal(value: float) -> Fraction:
    return Fraction(repr(float(value)))
