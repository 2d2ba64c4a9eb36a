"""What a platform knows of a worker's speed beforehand: times of batches, and the rate within targets.

The times are those of the worker's batch-time model, as dynamo's planner has them from a performance model of the
engine. Prompts of a queue are taken as equally long.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.system import Worker

CANDIDATES = 128
"""Most batch sizes that are tried."""


class Engine(NamedTuple):
    """A worker with the limits of its batches.

    Attributes:
        worker: KV memory, batch times and role.
        batch_tokens: most tokens of a batch.
        sequences: most requests of a batch.
    """

    worker: Worker
    batch_tokens: int
    sequences: int

    def prefill_time(self, tokens: float, prompt: float, decodes: float = 0, context: float = 0) -> float:
        """Return the seconds that a worker needs for prompts, one batch after another.

        Args:
            tokens: prompt tokens in all.
            prompt: mean prompt, tokens.
            decodes: requests that decode in each batch.
            context: their tokens in memory.
        """
        full, rest = divmod(tokens, self.batch_tokens)
        return sum(
            count * self._batch(chunk, prompt, decodes, context)
            for count, chunk in ((full, self.batch_tokens), (1, rest))
            if count and chunk
        )

    def decode_time(self, requests: float, context: float, tokens: float = 0, prompt: float = 1) -> float:
        """Return the seconds of a batch of decodes with some prompt tokens; arguments as of :meth:`prefill_time`."""
        return self._batch(tokens, prompt, requests, context)

    def _batch(self, tokens: float, prompt: float, decodes: float, context: float) -> float:
        found = self._batches(np.array([tokens]), np.array([decodes]), np.array([context]), prompt)
        return float(found[0])

    def _batches(
        self, tokens: NDArray[Any], decodes: NDArray[Any], context: NDArray[Any], prompt: float
    ) -> NDArray[np.float64]:
        """Return the seconds of batches, (n,)."""
        each = np.minimum(tokens, max(1.0, prompt))
        found = self.worker.batch_time(
            num_prefills=np.ceil(tokens / np.maximum(each, 1)).astype(np.int64),
            prefill_tokens=np.ceil(tokens).astype(np.int64),
            prefill_squares=np.ceil(tokens * each).astype(np.int64),
            num_decodes=np.ceil(decodes).astype(np.int64),
            decode_context=np.ceil(context).astype(np.int64),
        )
        return np.asarray(found, np.float64)

    def rate(self, prompt: float, output: float, ttft: float = math.inf, itl: float = math.inf) -> float:
        """Return the requests per second of a worker, at the batch size that serves most within its targets.

        If no batch size meets them, at the one that serves most.

        Args:
            prompt: mean prompt, tokens, > 0.
            output: mean output, tokens, > 0.
            ttft: most seconds until the first token, without a queue.
            itl: most seconds of a batch with decodes.
        """
        most = self._most_requests(prompt, output)
        sizes = np.unique(np.linspace(1, most, min(most, CANDIDATES)).astype(np.int64))
        if self.worker.role == "prefill":
            times = np.array([self.prefill_time(n * prompt, prompt) for n in sizes.tolist()])
            return _best(sizes / times, times <= ttft)
        context = sizes * (prompt + output / 2)
        if self.worker.role == "decode":
            times = self._batches(np.zeros(len(sizes)), sizes, context, prompt)
            return _best(sizes / (output * times), times <= itl)
        tokens = sizes * prompt / output
        fits = tokens + sizes <= self.batch_tokens
        if fits.any():  # prompts come in as fast as requests leave
            sizes, context, tokens = sizes[fits], context[fits], tokens[fits]
        times = self._batches(tokens, sizes, context, prompt)
        good = times <= itl
        if ttft < math.inf:
            first = [
                self.prefill_time(t + prompt, prompt, n, c)
                for t, n, c in zip(tokens.tolist(), sizes.tolist(), context.tolist(), strict=True)
            ]
            good &= np.array(first) <= ttft
        return _best(sizes / (output * times), good)

    def _most_requests(self, prompt: float, output: float) -> int:
        if self.worker.role == "prefill":
            return max(1, min(self.sequences, int(self.batch_tokens // prompt)))
        return max(1, min(self.sequences, int(self.worker.kv_capacity // (prompt + output / 2))))


def _best(rates: NDArray[np.float64], good: NDArray[np.bool_]) -> float:
    return float((rates[good] if good.any() else rates).max())


@lru_cache(maxsize=1024)
def rate_of(engine: Engine, prompt: float, output: float, ttft: float, itl: float) -> float:
    """Return :meth:`Engine.rate`, which autoscalers ask for with the same arguments again and again."""
    return engine.rate(prompt, output, ttft, itl)
