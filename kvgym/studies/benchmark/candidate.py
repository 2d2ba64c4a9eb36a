"""The process of a candidate: it loads a policy or router and answers the caller's questions about a run.

It is forked from one that has imported what candidates need (:func:`nurse`). It holds what the candidate may observe,
and no true lengths (:mod:`kvgym.studies.benchmark.observed`). Its answers are decisions and nothing else; the caller
executes them with its own engine.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
import json
import os
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgym.errors import ConfigError, InvalidDecisionError, KVGymError

if TYPE_CHECKING:  # they load the simulator, which the limit on memory includes
    from kvgym.policies.policy import Policy
    from kvgym.policies.routing import Router
    from kvgym.studies.benchmark.observed import Mirror

MIB = 2**20

QUESTION = struct.Struct("=cQ")
"""Head of a question: its kind and the bytes that follow. An answer is the same without a kind, and JSON."""

ANSWER = struct.Struct("=Q")

POINT = struct.Struct("=qqqq")
"""What a router decides: the request, the first and the end of its candidates, the worker at a boundary; -1 = none."""


def maker_of(entry: str) -> Callable[[], Any]:
    """Return what makes the policy or router of an entry.

    Raises:
        KVGymError: there is no such entry, or the file does not define one policy or router.
    """
    if not entry.endswith(".py"):
        from kvgym.studies.benchmark.entries import load_entry

        return lambda: load_entry(entry).made
    from kvgym.utils.hyperparameters import construct

    cls = _class_in(Path(entry))
    return lambda: construct(cls, {}, cls.__name__)


def _class_in(path: Path) -> type[Any]:
    """Return the policy or router class that a file defines."""
    from kvgym.policies.policy import Policy
    from kvgym.policies.routing import Router

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        code = spec.loader.get_code(path.stem)  # type: ignore[attr-defined]  # of a loader of files
    except MemoryError:
        raise ConfigError(f"{path.name} cannot be imported: it is nested too deeply") from None
    except Exception as error:
        raise ConfigError(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        exec(code, vars(module))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from error
    classes = [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, Policy | Router) and each.__module__ == path.stem
    ]
    if len(classes) != 1:
        raise ConfigError(
            f"{path.name} defines {len(classes)} classes derived from kvgym.Policy or kvgym.Router; expected one"
        )
    return classes[0]


class Answering:
    """Answers the questions about a candidate, by their kinds.

    Args:
        made: the policy or router.
    """

    def __init__(self, made: Policy | Router) -> None:
        from kvgym.policies.policy import CompiledPolicy

        self._made = made
        self._policies: list[Policy] = []
        self._router: Router | None = None
        self._mirror: Mirror | None = None
        compiled = isinstance(made, CompiledPolicy) and type(made).schedule is CompiledPolicy.schedule
        self._consults = compiled  # its kernel is called

    def answer(self, kind: bytes, content: bytes) -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            KVGymError: the candidate failed.
        """
        return {
            b"I": self._describe, b"P": self._reset_policy, b"T": self._reset_router, b"S": self._start,
            b"D": self._decide, b"R": self._route,
        }[kind](content)  # fmt: skip

    def _describe(self, _: bytes) -> dict[str, Any]:
        from kvgym.policies.routing import Router

        info: Any = self._made.info
        if isinstance(self._made, Router):
            return {"role": "router", "name": info.name, "reassigns": bool(self._made.reassigns)}
        needs, uses, advice = sorted(info.needs), sorted(info.uses), str(info.livelock_advice)
        return {
            "role": "scheduler",
            "name": info.name,
            "needs": needs,
            "uses": uses,
            "livelock_advice": advice,
        }

    def _reset_policy(self, content: bytes) -> dict[str, Any]:
        from kvgym.utils.user_code import calling

        worker, info = pickle.loads(content)
        made: Any = self._made
        if worker == 0:
            self._policies = []
            policy = copy.copy(made)
        else:
            with calling(made, "policy", "copy.deepcopy"):
                policy = copy.deepcopy(made)
        with calling(made, "policy", "reset"):
            policy.reset(info)
        self._policies.append(policy)
        return {}

    def _reset_router(self, content: bytes) -> dict[str, Any]:
        from kvgym.utils.user_code import calling

        router: Any = copy.copy(self._made)
        with calling(router, "router", "reset"):
            router.reset(*pickle.loads(content))
        self._router = router
        return {}

    def _start(self, content: bytes) -> dict[str, Any]:
        from kvgym.studies.benchmark.observed import Mirror

        self._mirror = Mirror(pickle.loads(content))
        simulation: Any = self._mirror.simulation
        if self._router is None:
            simulation.set_policies(self._policies)
        else:
            simulation.set_router(self._router)
        return {}

    def _decide(self, content: bytes) -> dict[str, Any]:
        from kvgym.utils.user_code import calling

        assert self._mirror is not None
        self._mirror.update(content)
        simulation = self._mirror.simulation
        policy, decision = self._policies[simulation.current], None
        if not self._consults:
            with calling(policy, "policy", "schedule"):
                decision = policy.schedule(simulation.view)
            if decision is None:  # would call a kernel
                raise InvalidDecisionError(f"policy {simulation.policy_name!r}: the decision is None")
        found = self._mirror.consult(decision)
        return {**vars(found), "tokens": list(found.tokens.items())}

    def _route(self, content: bytes) -> dict[str, Any]:
        from kvgym.simulator.view import ClusterView

        assert self._mirror is not None
        self._mirror.update(content[POINT.size :])
        request, first, last, boundary = POINT.unpack(content[: POINT.size])
        simulation: Any = self._mirror.simulation
        view = ClusterView(simulation, request, range(first, last), None if boundary < 0 else boundary)
        return {"answer": simulation.consult_router(view)}


LONGEST_ORDER = 1 << 16
"""Longest order for :func:`nurse`, bytes."""


def nurse(channel: socket.socket) -> None:
    """Import what candidates need, and fork a process for each order until the caller closes the channel.

    An order is the request of :func:`main` in JSON, with three descriptors: the ends of the pipes of questions,
    answers and prints; its answer is the id of the process, which leads a group of its own. An order of a number asks
    for the exit status of that process: null while it runs. This process never runs code of a candidate.
    """
    from kvgym.simulator.loop import decide
    from kvgym.studies.benchmark import observed  # noqa: F401  # with the simulator, before a candidate's clock starts

    decide.compiled  # noqa: B018
    while True:
        order, descriptors, _, _ = socket.recv_fds(channel, LONGEST_ORDER, 3)
        if not order:
            return
        request = json.loads(order)
        if isinstance(request, int):
            found, status = os.waitpid(request, os.WNOHANG)
            channel.send(json.dumps(os.waitstatus_to_exitcode(status) if found else None).encode())
            continue
        child = os.fork()
        if child == 0:
            channel.close()
            os.setsid()
            for place, descriptor in enumerate(descriptors):
                os.dup2(descriptor, place)
                os.close(descriptor)
            code = 1
            try:
                main(request)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(BaseException):
                    sys.stdout.flush()
                os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(json.dumps(child).encode())


def main(request: dict[str, Any]) -> None:
    """Load an entry and answer questions until the caller closes the pipe.

    What the candidate prints goes to standard error, and it reads nothing.
    """
    if sys.platform != "win32":
        import resource

        limit = request["memory_mib"] * MIB
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    answering: Answering | None = None
    while head := questions.read(QUESTION.size):
        kind, length = QUESTION.unpack(head)
        content = questions.read(length)
        try:
            if answering is None:
                answering = Answering(maker_of(request["entry"])())
            answer = answering.answer(kind, content)
        except MemoryError:
            answer = {"lost": f"it needs more than {request['memory_mib']} MiB of memory"}
        except KVGymError as error:
            answer = {"lost" if answering is None else "failed": str(error)}
        text = json.dumps(answer).encode()
        answers.write(ANSWER.pack(len(text)) + text)
        answers.flush()


if __name__ == "__main__":
    nurse(socket.socket(fileno=int(sys.argv[1])))
