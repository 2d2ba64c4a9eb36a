"""Tasks on a Ray cluster: one that this process starts, or one that runs. Needs the extra ``kvgym[ray]``."""

from __future__ import annotations

import socket
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from kvgym.errors import ConfigError
from kvgym.execution.executor import MOST_ATTEMPTS, Executor, Result, Task, Work, call, given_up

LOCAL = "local"
PATIENCE = 10.0
"""Seconds until a node must have answered."""

_kept: dict[str, Any] = {}  # in a worker process: the work of the latest executor, by its id


class OnRay(Executor[Task, Result]):
    """Does tasks as Ray tasks of one core each; Ray repeats those of a worker or node that died.

    Args:
        work: what is called with each task, picklable; kvgym must be installed on all nodes, in the same version.
        address: ``"local"`` = a cluster of this machine's cores, which ends with the executor; else that of a running
            one, ``"auto"`` for that of the machine.
        jobs: tasks at a time; 0 = as many as the cluster has cores for, also as nodes come and go.

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
        """Do tasks, see :meth:`Executor.stream`."""
        ray = self._ray
        left = deque(range(len(tasks)))
        running: dict[Any, int] = {}
        try:
            while left or running:
                most = self._most()
                while left and len(running) < most:
                    place = left.popleft()
                    # In a list, so that Ray hands over the reference and not the object.
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
        """Leave the cluster; one that was started here ends."""
        if self._owns and self._ray.is_initialized():
            self._ray.shutdown()

    def _most(self) -> int:
        """Return how many tasks may be handed to the cluster at a time: those it can run, and as many to wait."""
        return self._jobs or 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))


def _check_address(address: str) -> None:
    """Check that somebody answers at host:port: Ray itself would try for minutes.

    Raises:
        ConfigError: nobody does.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"no Ray cluster at {address!r} ({error}); start one with: ray start --head, or say {LOCAL!r}"
    )


def _do(name: str, work: list[Any], task: Any) -> Any:
    """Do a task in a worker process, with the work that it keeps."""
    import ray

    if name not in _kept:
        _kept.clear()
        _kept[name] = ray.get(work[0])
    return call(_kept[name], task)
