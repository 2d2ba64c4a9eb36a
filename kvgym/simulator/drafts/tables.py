"""The records of speculative decoding; a run without it has none of them."""

from __future__ import annotations

import numpy as np

MAX_DEPTH = 16
"""Most drafts of a request in a batch."""

LEVELS = 32
"""Classes of the worth of a draft, by which the rule ``cost_each`` compares them."""

FIXED, TABLE, COST, COST_EACH = 0, 1, 2, 3
RULES = {"fixed": FIXED, "table": TABLE, "cost": COST, "cost_each": COST_EACH}
"""How the number of the next drafts is chosen."""

DUE = -1
"""DRAFTS.proposed of a request that has made a token in this batch and gets drafts at its end."""

DRAFTS = np.dtype(
    [
        ("proposed", "i4"),  # drafts that its next decode verifies
        ("kv_top", "i4"),  # most tokens that memory was taken for; blocks of rejected drafts stay
        ("tried", "i4"),  # drafts that were verified since it started, up to the first wrong one
        ("right", "i4"),  # those of them that were right
    ],
    align=True,
)
"""What speculation knows of an active request, parallel to its SLOT."""

SPECULATION = np.dtype(
    [
        ("depth", "i8"),  # most drafts
        ("rule", "i8"),  # a code of RULES
        ("seeded", "i8"),  # 1: what is right is drawn by the acceptance rates; 0: it is recorded
        ("needed", "i8"),  # 1: a request of the batch can use the drafts that are proposed after it
        ("accepted", "i8"),  # drafts of the batch that were right
        ("longest", "i8"),  # most drafts of a request in the batch
        ("per_batch", "f8"),  # seconds of a batch with drafts for their making,
        ("per_pass", "f8"),  # and per draft of the request with the most,
        ("per_draft", "f8"),  # and per draft of all requests,
        ("per_context", "f8"),  # and per token in the cache of the requests that decode
        ("tried", "i8", (MAX_DEPTH,)),  # drafts verified so far by position, after right ones only
        ("right", "i8", (MAX_DEPTH,)),  # those of them that were right
        ("most", "i8"),  # with `cost_each`: most drafts of a request in the next batch
        ("counts", "i8", (LEVELS,)),  # and scratch space: drafts by their worth, and its sum
        ("worth", "f8", (LEVELS,)),
    ],
    align=True,
)
"""Settings and counts of a worker's speculation."""
