"""The workers of a dask scheduler as an executor of a study's cells, and the errors of executors of several machines.

A study takes any `concurrent.futures.Executor`. Workers call `isolated.run_cell` with a cell and return its row, in which the
contents of its files are; the study's own process alone writes the study's folder. Workers need the same trainplan, and files
that requests name under the same paths.

A cell whose worker dies is run again by another worker. If workers die again and again, its future raises `WorkerDied`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, MissingExtra, shown
from trainplan.studies.environment import versions

CONNECT_SECONDS = 15


class WorkerDied(RuntimeError):
    """The workers that ran a cell died, one after the other; the message says why."""


class NotSubmitted(BrokenExecutor):
    """Jobs could not be submitted; the message has the reason."""


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The workers of a dask scheduler as an executor, as a context manager that closes the connection.

    address: of the scheduler, such as tcp://10.0.0.1:8786, or the path of its scheduler file (`.json`).

    Raises:
        InputError: where there is no scheduler or no worker at this address, and where workers have another trainplan.
        MissingExtra: where dask.distributed is not installed.
    """
    distributed = installed("distributed", "dask.distributed", "--dask")
    if address.endswith(".json") and not os.path.isfile(address):
        raise InputError(COMMAND_LINE, "--dask", f"is {shown(address)}, which does not exist", "give dask's scheduler file")
    where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
    try:
        client = distributed.Client(**where, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        problem = (
            f"is {shown(address)}, and no scheduler answers there ({str(error).splitlines()[0] if str(error) else 'time'})"
        )
        raise InputError(COMMAND_LINE, "--dask", problem, "give the address that dask scheduler prints") from None
    try:
        _check_workers(client, address)
        executor = client.get_executor(pure=False)
        try:
            yield _Dask(executor)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        executor.shutdown()
    finally:
        with suppress(TimeoutError, OSError):
            client.close()


def _check_workers(client: Any, address: str) -> None:
    """Raise InputError unless a dask scheduler has workers, all with this version of trainplan. client: the connection to the
    scheduler at `address`."""
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError:
        raise InputError(
            COMMAND_LINE, "--dask", f"is {shown(address)}, which has no workers", "start some: dask worker"
        ) from None
    ours = own_version()
    for worker, theirs in client.run(own_version, on_error="return").items():
        if isinstance(theirs, BaseException):
            problem, fix = f"has the worker {worker} without trainplan ({type(theirs).__name__})", "install it there"
        elif theirs != ours:
            problem, fix = f"has the worker {worker} with trainplan {theirs}", f"install trainplan {ours} there"
        else:
            continue
        raise InputError(COMMAND_LINE, "--dask", problem, fix)


def own_version() -> str:
    """The version of trainplan, with a digest of its source files if it is not an installed release."""
    return versions()["trainplan"]


class _Dask(Executor):
    """An executor of dask.distributed whose futures raise WorkerDied where the scheduler gave a cell up because of the workers
    that died with it (KilledWorker)."""

    def __init__(self, executor: Executor) -> None:
        """executor: the executor of a dask client."""
        self._executor = executor

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Have a worker call a function, and return the future of its answer."""
        answer: Future[Any] = Future()
        inner = self._executor.submit(function, *arguments, **keywords)

        def settle(done: Future[Any]) -> None:
            """Pass the outcome of a dask future on. done: the future, which has ended."""
            if done.cancelled():
                answer.cancel()
                return
            if not answer.set_running_or_notify_cancel():
                return
            error = done.exception()
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(died(error) if type(error).__name__ == "KilledWorker" else error)

        inner.add_done_callback(settle)
        answer.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the use of the workers, which go on for others. wait: for the cells that are running; if False, or with
        cancel_futures, they are cancelled."""
        self._executor.shutdown(wait=wait and not cancel_futures)


def died(error: BaseException) -> WorkerDied:
    """The error of a cell whose workers died. error: as dask or submitit reports it."""
    return WorkerDied(f"its workers died: {' '.join(str(error).split())[:300]}")


def installed(module: str, package: str, purpose: str) -> Any:
    """Import a module of the extra `cluster`. package: its name for people. purpose: what needs it. Raises MissingExtra if the
    module is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(package, "cluster", purpose) from None
