"""Building blocks of compiled policies: everything a policy's kernel needs, in one place.

A compiled policy is a class with a kernel: a function of the policy's view, its decision and its memory
(:class:`PolicyView`, :class:`PolicyDecision`, :class:`PolicyMemory`; their fields are explained there)::

    from kvgym import CompiledPolicy, PolicyInfo, register_policy
    from kvgym.kernels import admit_while_fits, evict_latest, need_of_active, policy_kernel


    @policy_kernel
    def rule(view, decision, memory):
        need = need_of_active(view)
        if need > view.problem.kv_capacity:
            evict_latest(view, decision, need)
        else:
            admit_while_fits(view, decision, need, view.problem.kv_capacity)


    @register_policy
    class MyFCFS(CompiledPolicy):
        info = PolicyInfo(name="my_fcfs", summary="first come, first served", evicts=True)
        kernel = rule

A kernel is called at every iteration boundary. By default the decision runs all active requests and admits none. The
kernel is written in Numba's subset of Python and allocates nothing, so it creates no arrays: it keeps arrays in its
memory, see :meth:`kvgym.policies.policy.CompiledPolicy.memory`. Its helpers have the decorator :func:`jit`, or
:func:`jit_inline` if they run at every decision and take the tuples.

The building blocks:

- The queue: :func:`first_waiting`, :func:`next_waiting`, :func:`next_to_admit`; they return UNKNOWN if there is none.
- Requests that left: the router of a cluster may move requests away. A kernel that remembers waiting or active
  requests must first forget the ``view.worker.num_left`` requests of :func:`left_request` and then add those of
  ``view.queued``. Forget them in heaps by :func:`forget_left` and :func:`forget_ranked`, in queues by :func:`unlink`,
  in a profile by :func:`profile_of`.
- Memory of the next iteration: :func:`need_of`, :func:`need_of_active`; if not all requests run in full
  :func:`need_of_tokens`, :func:`need_of_decodes`, :func:`held_by`, :func:`kv_growth`, :func:`claim_of`,
  :func:`chunk_that_fits`, :func:`needs_block`, :func:`full_tokens`.
- Drafts of decodes, in a system that speculates: :func:`decode_tokens`, :func:`need_of_slot`,
  :func:`need_with_tokens`, :func:`held_by_slot`, :func:`growth_of_slot`. Without speculation they are as the functions
  of rows. A policy that uses them says so by ``PolicyInfo.drafts``.
- Memory that requests share in a prefix cache: :func:`kept_by_others` of a request that is evicted, :func:`stays` and
  :func:`all_stay` if it is not after all; :func:`taken_by` and :func:`shared_hit` of one that starts. All other
  functions count each request alone, which is an upper bound. :func:`prefill_without_cache` does not change with hits,
  and :func:`begins_like_another` compares waiting requests.
  Where a decision takes effect in order, :func:`plan_in_order`, :func:`size_of_start` and :func:`plan_next` say what
  each start finds; without them, hits before the decision bound what all starts take together.
- Deciding: :func:`has_place`, :func:`admit`, :func:`admit_tokens`, :func:`admit_while_fits`, :func:`room_to_admit`,
  :func:`evict`, :func:`evict_latest`, :func:`clear_all`, :func:`put_back`, :func:`pause`, :func:`pause_all`,
  :func:`drop_full_plan`; to wait, set ``decision.record.act = WAIT`` and, if not for the next arrival, ``wait_until``.
- A column of ``view.requests`` for all active requests: :func:`follow_slots`.
- Future memory: :mod:`kvgym.simulator.kernels.future_memory`, with :func:`first_tokens`.
- Heaps in ``memory.state``: :mod:`kvgym.simulator.kernels.heap`. Random numbers: :mod:`kvgym.simulator.kernels.random`.
- The constants in records: :mod:`kvgym.simulator.tables`.

Memory is divided into blocks of ``view.problem.block_size`` tokens, and a request holds whole blocks. ``num_kv_tokens``
of a row and ``view.worker.kv_tokens`` count tokens, but ``view.problem.kv_capacity`` limits *allocated tokens*: the
size of all blocks held. All functions here return memory in allocated tokens, and ``view.worker.kv_allocated`` is that
of the active set before the iteration, so kernels built from them need not handle blocks. :func:`allocated` converts
the tokens of one request; it must not be applied to sums over requests.
"""

from __future__ import annotations

from kvgym.compiling.heaps import ranked_before as ranked_before
from kvgym.compiling.heaps import ranked_pop as ranked_pop
from kvgym.compiling.heaps import ranked_push as ranked_push
from kvgym.compiling.kernel import jit as jit
from kvgym.compiling.kernel import jit_inline as jit_inline
from kvgym.compiling.named import named_numbers as named_numbers
from kvgym.simulator.blocks import allocated as allocated
from kvgym.simulator.blocks import full_tokens as full_tokens
from kvgym.simulator.blocks import kv_growth as kv_growth
from kvgym.simulator.blocks import written_tokens as written_tokens
from kvgym.simulator.cluster.router_view import REJECT as REJECT
from kvgym.simulator.cluster.router_view import RouterView as RouterView
from kvgym.simulator.cluster.router_view import first_open as first_open
from kvgym.simulator.cluster.router_view import found_of as found_of
from kvgym.simulator.cluster.router_view import hit_of as hit_of
from kvgym.simulator.cluster.router_view import may_choose as may_choose
from kvgym.simulator.cluster.router_view import may_go as may_go
from kvgym.simulator.cluster.router_view import missing_of as missing_of
from kvgym.simulator.cluster.router_view import next_open as next_open
from kvgym.simulator.cluster.router_view import prefill_backlog as prefill_backlog
from kvgym.simulator.cluster.router_view import prefill_only as prefill_only
from kvgym.simulator.kernels.ahead import decide_again as decide_again
from kvgym.simulator.kernels.ahead import decide_ahead as decide_ahead
from kvgym.simulator.kernels.ahead import preempt_finished as preempt_finished
from kvgym.simulator.kernels.drafts import decode_tokens as decode_tokens
from kvgym.simulator.kernels.drafts import growth_of_slot as growth_of_slot
from kvgym.simulator.kernels.drafts import held_by_slot as held_by_slot
from kvgym.simulator.kernels.drafts import need_of_slot as need_of_slot
from kvgym.simulator.kernels.drafts import need_with_tokens as need_with_tokens
from kvgym.simulator.kernels.future_memory import blocked_for as blocked_for
from kvgym.simulator.kernels.future_memory import empty_profile as empty_profile
from kvgym.simulator.kernels.future_memory import first_tokens as first_tokens
from kvgym.simulator.kernels.future_memory import first_use as first_use
from kvgym.simulator.kernels.future_memory import predicted_rounds as predicted_rounds
from kvgym.simulator.kernels.future_memory import profile_add as profile_add
from kvgym.simulator.kernels.future_memory import profile_clear as profile_clear
from kvgym.simulator.kernels.future_memory import profile_forget as profile_forget
from kvgym.simulator.kernels.future_memory import profile_of as profile_of
from kvgym.simulator.kernels.future_memory import profile_offset as profile_offset
from kvgym.simulator.kernels.future_memory import rounds_for as rounds_for
from kvgym.simulator.kernels.heap import heap_first as heap_first
from kvgym.simulator.kernels.heap import heap_forget as heap_forget
from kvgym.simulator.kernels.heap import heap_pop as heap_pop
from kvgym.simulator.kernels.heap import heap_push as heap_push
from kvgym.simulator.kernels.heap import key_request as key_request
from kvgym.simulator.kernels.heap import ranked_forget as ranked_forget
from kvgym.simulator.kernels.heap import ranked_keep as ranked_keep
from kvgym.simulator.kernels.heap import ranked_merge as ranked_merge
from kvgym.simulator.kernels.heap import ranked_sink as ranked_sink
from kvgym.simulator.kernels.heap import ranked_sort as ranked_sort
from kvgym.simulator.kernels.heap import request_key as request_key
from kvgym.simulator.kernels.loads import LOADS as LOADS
from kvgym.simulator.kernels.loads import RUNS as RUNS
from kvgym.simulator.kernels.loads import WAITS as WAITS
from kvgym.simulator.kernels.loads import held_in_queue as held_in_queue
from kvgym.simulator.kernels.loads import kind_of_start as kind_of_start
from kvgym.simulator.kernels.loads import memory_reserved as memory_reserved
from kvgym.simulator.kernels.loads import rest_of_start as rest_of_start
from kvgym.simulator.kernels.memory import NO_LIMIT as NO_LIMIT
from kvgym.simulator.kernels.memory import admit as admit
from kvgym.simulator.kernels.memory import admit_tokens as admit_tokens
from kvgym.simulator.kernels.memory import admit_while_fits as admit_while_fits
from kvgym.simulator.kernels.memory import all_stay as all_stay
from kvgym.simulator.kernels.memory import begins_like_another as begins_like_another
from kvgym.simulator.kernels.memory import chunk_that_fits as chunk_that_fits
from kvgym.simulator.kernels.memory import claim_of as claim_of
from kvgym.simulator.kernels.memory import claim_to_start as claim_to_start
from kvgym.simulator.kernels.memory import clear_all as clear_all
from kvgym.simulator.kernels.memory import evict as evict
from kvgym.simulator.kernels.memory import evict_latest as evict_latest
from kvgym.simulator.kernels.memory import first_waiting as first_waiting
from kvgym.simulator.kernels.memory import has_place as has_place
from kvgym.simulator.kernels.memory import held_by as held_by
from kvgym.simulator.kernels.memory import kept_by_others as kept_by_others
from kvgym.simulator.kernels.memory import look_up_prefix as look_up_prefix
from kvgym.simulator.kernels.memory import need_of as need_of
from kvgym.simulator.kernels.memory import need_of_active as need_of_active
from kvgym.simulator.kernels.memory import need_of_decodes as need_of_decodes
from kvgym.simulator.kernels.memory import need_of_tokens as need_of_tokens
from kvgym.simulator.kernels.memory import needs_block as needs_block
from kvgym.simulator.kernels.memory import next_to_admit as next_to_admit
from kvgym.simulator.kernels.memory import next_waiting as next_waiting
from kvgym.simulator.kernels.memory import pause as pause
from kvgym.simulator.kernels.memory import pause_all as pause_all
from kvgym.simulator.kernels.memory import plan_in_order as plan_in_order
from kvgym.simulator.kernels.memory import plan_next as plan_next
from kvgym.simulator.kernels.memory import prefill_without_cache as prefill_without_cache
from kvgym.simulator.kernels.memory import put_back as put_back
from kvgym.simulator.kernels.memory import room_to_admit as room_to_admit
from kvgym.simulator.kernels.memory import shared_hit as shared_hit
from kvgym.simulator.kernels.memory import shared_units as shared_units
from kvgym.simulator.kernels.memory import size_of_start as size_of_start
from kvgym.simulator.kernels.memory import stays as stays
from kvgym.simulator.kernels.memory import taken_by as taken_by
from kvgym.simulator.kernels.random import next_uniform as next_uniform
from kvgym.simulator.kernels.random import seed_words as seed_words
from kvgym.simulator.kernels.rerouted import forget_left as forget_left
from kvgym.simulator.kernels.rerouted import forget_ranked as forget_ranked
from kvgym.simulator.kernels.rerouted import left_request as left_request
from kvgym.simulator.kernels.rerouted import move_to as move_to
from kvgym.simulator.kernels.rerouted import unlink as unlink
from kvgym.simulator.kernels.slots import drop_full_plan as drop_full_plan
from kvgym.simulator.kernels.slots import follow_slots as follow_slots
from kvgym.simulator.policy_interface import PolicyDecision as PolicyDecision
from kvgym.simulator.policy_interface import PolicyMemory as PolicyMemory
from kvgym.simulator.policy_interface import PolicyView as PolicyView
from kvgym.simulator.policy_interface import policy_kernel as policy_kernel
from kvgym.simulator.policy_interface import policy_memory as policy_memory
from kvgym.simulator.policy_interface import view_of as view_of
from kvgym.simulator.tables import ACTIVE as ACTIVE
from kvgym.simulator.tables import FINISHED as FINISHED
from kvgym.simulator.tables import FUTURE as FUTURE
from kvgym.simulator.tables import PROGRESS_KEPT as PROGRESS_KEPT
from kvgym.simulator.tables import PROGRESS_LOST as PROGRESS_LOST
from kvgym.simulator.tables import PROGRESS_RECOMPUTE as PROGRESS_RECOMPUTE
from kvgym.simulator.tables import REQUEUE_ARRIVAL as REQUEUE_ARRIVAL
from kvgym.simulator.tables import REQUEUE_BACK as REQUEUE_BACK
from kvgym.simulator.tables import REQUEUE_FRONT as REQUEUE_FRONT
from kvgym.simulator.tables import ROLE_DECODE as ROLE_DECODE
from kvgym.simulator.tables import ROLE_MIXED as ROLE_MIXED
from kvgym.simulator.tables import ROLE_PREFILL as ROLE_PREFILL
from kvgym.simulator.tables import RUN as RUN
from kvgym.simulator.tables import UNKNOWN as UNKNOWN
from kvgym.simulator.tables import WAIT as WAIT
from kvgym.simulator.tables import WAITING as WAITING

__all__ = [
    "ACTIVE",
    "FINISHED",
    "FUTURE",
    "NO_LIMIT",
    "PROGRESS_KEPT",
    "PROGRESS_LOST",
    "PROGRESS_RECOMPUTE",
    "REJECT",
    "REQUEUE_ARRIVAL",
    "REQUEUE_BACK",
    "REQUEUE_FRONT",
    "ROLE_DECODE",
    "ROLE_MIXED",
    "ROLE_PREFILL",
    "RUN",
    "UNKNOWN",
    "WAIT",
    "WAITING",
    "PolicyDecision",
    "PolicyMemory",
    "PolicyView",
    "RouterView",
    "admit",
    "admit_tokens",
    "admit_while_fits",
    "allocated",
    "blocked_for",
    "chunk_that_fits",
    "claim_of",
    "clear_all",
    "drop_full_plan",
    "empty_profile",
    "evict",
    "evict_latest",
    "first_tokens",
    "first_waiting",
    "follow_slots",
    "forget_left",
    "forget_ranked",
    "found_of",
    "full_tokens",
    "has_place",
    "heap_first",
    "heap_forget",
    "heap_pop",
    "heap_push",
    "held_by",
    "hit_of",
    "jit",
    "jit_inline",
    "key_request",
    "kv_growth",
    "left_request",
    "may_choose",
    "missing_of",
    "move_to",
    "need_of",
    "need_of_active",
    "need_of_decodes",
    "need_of_tokens",
    "needs_block",
    "next_to_admit",
    "next_uniform",
    "next_waiting",
    "pause",
    "pause_all",
    "policy_kernel",
    "policy_memory",
    "predicted_rounds",
    "prefill_backlog",
    "prefill_only",
    "profile_add",
    "profile_clear",
    "profile_forget",
    "profile_of",
    "profile_offset",
    "put_back",
    "ranked_before",
    "ranked_forget",
    "ranked_keep",
    "ranked_merge",
    "ranked_pop",
    "ranked_push",
    "ranked_sink",
    "ranked_sort",
    "request_key",
    "room_to_admit",
    "rounds_for",
    "seed_words",
    "unlink",
    "view_of",
]
