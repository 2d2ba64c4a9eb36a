"""Executor on a Ray cluster, a local or a running one. Needs the extra ``kvgym[ray]``."""

from __future__ import annotations

import socket
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from kvgym.errors import ConfigError
from kvgym.utils.execution.executor import MOST_ATTEMPTS, Executor, Result, Task, Work, call, given_up

LOCAL = "local"
CONNECT_TIMEOUT = 10.0
"""Longest wait for the answer of a node, seconds."""

_works: dict[str, Any] = {}  # in a worker process: the work of the latest executor, by its id


class OnRay(Executor[Task, Result]):
    """Runs tasks as Ray tasks of one core each; Ray repeats the tasks of dead workers and nodes.

    Args:
        work: called with each task; picklable. All nodes need the same version of kvgym.
        address: ``"local"`` = a cluster of this machine's cores, which stops with the executor; else the address of a
            running cluster, ``"auto"`` for the one on this machine.
        jobs: number of parallel tasks; 0 = as many as the cluster has cores for, also when nodes join or leave.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, work: Work[Task, Result], address: str, jobs: int = 0) -> None:
        try:
            import ray
        except ImportError:
            raise ConfigError('Ray is not installed; install with: pip install "kvgym[ray]"') from None
        self._ray: Any = ray
        self._jobs = jobs
        self._owns = not ray.is_initialized()
        if self._owns:
            _check_address(address)
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            try:
                if address == LOCAL:
                    ray.init(address=LOCAL, num_cpus=jobs or None, include_dashboard=False, **options)
                else:
                    ray.init(address=address, **options)
            except (ConnectionError, ValueError) as error:
                raise _no_cluster(address, error) from None
        self._id = uuid.uuid4().hex
        self._work = ray.put(work)
        self._do: Any = ray.remote(num_cpus=1, max_retries=MOST_ATTEMPTS - 1)(_do)

    def stream(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Run tasks, see :meth:`Executor.stream`."""
        ray = self._ray
        left = deque(range(len(tasks)))
        running: dict[Any, int] = {}
        try:
            while left or running:
                most = self._most()
                while left and len(running) < most:
                    place = left.popleft()
                    # In a list, so that Ray passes the reference and not the object.
                    running[self._do.remote(self._id, [self._work], tasks[place])] = place
                done, _ = ray.wait(list(running), num_returns=1)
                for reference in done:
                    place = running.pop(reference)
                    try:
                        result = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None
                    except ray.exceptions.RayError:
                        raise given_up(tasks[place], "Ray workers") from None
                    yield place, result
        finally:
            for reference in running:
                ray.cancel(reference)

    def close(self) -> None:
        """Disconnect from the cluster; stop it if it was started here."""
        if self._owns and self._ray.is_initialized():
            self._ray.shutdown()

    def _most(self) -> int:
        """Return how many tasks to submit at a time: twice the number of cores, so that no core waits."""
        return self._jobs or 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))


def _check_address(address: str) -> None:
    """Check that host:port accepts connections, as Ray itself would try for minutes.

    Raises:
        ConfigError: it does not.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"no Ray cluster at {address!r} ({error}); start one with: ray start --head, or use {LOCAL!r}"
    )


def _do(name: str, work: list[Any], task: Any) -> Any:
    """Run a task in a worker process, with the work cached there."""
    import ray

    if name not in _works:
        _works.clear()
        _works[name] = ray.get(work[0])
    return call(_works[name], task)
