"""The loop around ask and tell: workers are kept busy, failures survived, and everything is saved on the way."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mtbo_torch.checks import require_count
from mtbo_torch.display import progress_bar
from mtbo_torch.experiment import Experiment
from mtbo_torch.strategies import Strategy


def optimize(
    strategy: Strategy | Experiment,
    function: Callable[[Any], Any],
    rounds: int,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    retries: int = 2,
    path: str | Path | None = None,
) -> None:
    """Ask for points, evaluate a function there and tell the values, round after round.

    Points that are pending at the start are evaluated first, so that a loop that was stopped, as by Ctrl-C, continues
    when it is called again. With one worker it then asks for exactly what it would have asked for without the stop.
    With several, no point is lost or asked for twice, but what is asked for depends on the order of the answers, as
    in every parallel run: the same order gives the same points.

    An evaluation has failed if it raised an exception, or returned an infinite value or NaN for all tasks. (NaN for
    some tasks is a missing value for :class:`Optimizer` and :class:`MTKB`, and a failure for others.) It is repeated a
    few times, then given up with a warning: that counts as a round, and the point is not asked for again in this loop.
    If the very first one has to be given up, its exception is raised.

    Args:
        strategy: Of a single trial; or an experiment.
        function: Takes a point, ``d``, and returns the ``n`` values of the tasks. For an experiment it takes a
            dictionary of the inputs and returns one of the tasks; tasks that are missing were not measured.
        rounds: The number of evaluations in all, including those in the file.
        executor: Where to evaluate: any of ``concurrent.futures``, or Dask's ``Client.get_executor()``. By default
            here, one after the other. A process pool needs a function that can be pickled.
        workers: How many evaluations should run at the same time; needed with an executor.
        retries: How many times an evaluation that failed is repeated.
        path: A file to which the state is saved after every proposal and every result. If it exists, the loop
            continues from it.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> import torch
        >>> from mtbo_torch import optimize
        >>> from mtbo_torch.strategies import SobolSearch
        >>> strategy = SobolSearch(num_tasks=2, bounds=torch.tensor([[0.0], [1.0]]))
        >>> with ThreadPoolExecutor(2) as executor:
        ...     optimize(strategy, lambda x: torch.cat([x, 1 - x]), rounds=8, executor=executor, workers=2)
        >>> strategy.num_observations
        8
    """
    require_count("rounds", rounds, "Pass the number of evaluations.")
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise ValueError(f"retries should be an integer >= 0, got {retries!r}. Pass 0 for none.")
    if not callable(function):
        raise ValueError(f"function should be callable, got {function!r}. Pass what evaluates a point.")
    workers = _check_workers(executor, workers)
    loop = _Loop(strategy, function, retries, None if path is None else Path(path))
    loop.run(_Here() if executor is None else executor, workers, rounds)


class _Here(Executor):
    """Evaluate at once, in this thread."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class _Loop:
    """A loop in progress.

    Attributes:
        done: The number of rounds.
        given_up: The numbers of points that cannot be evaluated. They stay pending, which keeps others away from them.
    """

    def __init__(
        self, strategy: Strategy | Experiment, function: Callable[[Any], Any], retries: int, path: Path | None
    ) -> None:
        self._experiment = strategy if isinstance(strategy, Experiment) else None
        inner = strategy.strategy if isinstance(strategy, Experiment) else strategy
        if not isinstance(inner, Strategy) or inner.batch_shape:
            shown = f"a batch of {inner.batch_shape.numel()}" if isinstance(inner, Strategy) else f"{strategy!r}"
            raise ValueError(
                f"strategy should be a Strategy of a single trial, or an Experiment, got {shown}. Pass one."
            )
        self._strategy, self._function, self._retries, self._path = inner, function, retries, path
        self.done, self.given_up = 0, list[int]()
        self._failures: dict[int, int] = {}
        if path is not None and path.exists():
            self._load(path)

    def run(self, executor: Executor, workers: int, rounds: int) -> None:
        waiting = [number for number in self._strategy.pending if number not in self.given_up]
        running: dict[Future[Any], int] = {}
        try:
            with progress_bar(rounds, type(self._strategy).__name__) as bar:
                bar.update(self.done)
                while self.done < rounds:
                    while len(running) < min(workers, rounds - self.done):
                        number = waiting.pop(0) if waiting else self._ask()
                        running[executor.submit(self._function, self._show(number))] = number
                    finished, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in [future for future in running if future in finished]:
                        number = running.pop(future)
                        if self._settle(number, future):
                            self.done += 1
                            self._save()
                            bar.update(1)
                        else:
                            waiting.insert(0, number)
        finally:
            for future in running:
                future.cancel()
        if self.given_up:
            self._strategy.forget(self.given_up)

    def _ask(self) -> int:
        self._strategy.ask()
        self._save()
        return self._strategy.asked_ids[0]

    def _show(self, number: int) -> Any:
        """Return a pending point as the function takes it."""
        point = self._strategy.pending[number]
        return point if self._experiment is None else self._experiment.inputs.decode(point.unsqueeze(0))[0]

    def _settle(self, number: int, future: Future[Any]) -> bool:
        """Tell what came of a point; return whether that is all, or it should be evaluated once more."""
        try:
            result = future.result()
        except BrokenExecutor:
            raise  # the point stays pending
        except Exception as error:
            return self._count_failure(number, error)
        values = self._read(result)
        missing = values.isnan()
        if values.isinf().any() or missing.all() or (missing.any() and not self._strategy._can_miss_values):
            return self._count_failure(number, ValueError(f"function should return finite values, got {result!r}."))
        self._strategy.tell(number, values, allow_missing=bool(missing.any()))
        return True

    def _count_failure(self, number: int, error: Exception) -> bool:
        self._failures[number] = self._failures.get(number, 0) + 1
        if self._failures[number] <= self._retries:
            return False
        if not self._strategy.num_observations:
            raise error
        warnings.warn(f"The evaluation at {self._show(number)} was given up: {error!r}.", stacklevel=4)
        self.given_up.append(number)
        return True

    def _read(self, result: Any) -> Tensor:
        """Return the values ``n`` that the function returned."""
        names = self._strategy.goal.task_names
        if self._experiment is not None:
            if not isinstance(result, Mapping) or not result.keys() <= set(names):
                raise ValueError(
                    f"function should return a dictionary with the tasks {', '.join(names)}, got {result!r}. Name them "
                    "as the experiment does."
                )
            result = [result.get(name, math.nan) for name in names]
        values = self._strategy._convert("function", result)
        if not isinstance(values, Tensor) or values.shape != (len(names),):
            raise ValueError(
                f"function should return the values of the {len(names)} tasks, got {result!r}. Return a tensor, an "
                "array or a list with one number for each task."
            )
        return values

    def _save(self) -> None:
        if self._path is None:
            return
        state = {"strategy": self._strategy.state_dict(), "done": self.done, "given_up": self.given_up}
        partial = self._path.with_name(f"{self._path.name}.partial")
        torch.save(state, partial)
        partial.replace(self._path)  # all of it or nothing

    def _load(self, path: Path) -> None:
        try:
            saved = torch.load(path, weights_only=True)
            state, done, given_up = saved["strategy"], int(saved["done"]), list(saved["given_up"])
            X, Y = state["train_X"], state["train_Y"]
        except OSError:
            raise
        except Exception as error:  # whatever another file makes of it
            raise ValueError(f"path should be a file of optimize(), got {path}. Pass another one.") from error
        count = self._strategy.num_observations
        mine = torch.cat([self._strategy.train_X, self._strategy.train_Y], dim=-1)
        if not torch.equal(torch.cat([X, Y], dim=-1)[:count].nan_to_num(), mine.nan_to_num()):
            raise ValueError(
                f"path should be a file that begins with the {count} observations of the strategy, got {path} with "
                "others. Pass a new path, or a strategy without observations."
            )
        self._strategy.load_state_dict(state)
        self.done, self.given_up = done, given_up


def _check_workers(executor: object, workers: int | None) -> int:
    if executor is None:
        if workers not in (None, 1):
            raise ValueError(f"workers should be 1 without an executor, got {workers!r}. Pass an executor as well.")
        return 1
    if not isinstance(executor, Executor):
        raise ValueError(
            f"executor should be one of concurrent.futures, got {executor!r}. Pass for instance ThreadPoolExecutor(4), "
            "or client.get_executor() of a Dask client."
        )
    require_count("workers", workers, "Pass how many evaluations should run at the same time.")
    assert workers is not None
    return workers
