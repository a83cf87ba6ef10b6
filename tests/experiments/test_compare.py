"""Benchmarks of one's own: paired runs, resumed from a file, wherever they run, and honest verdicts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch
from botorch.test_functions.multi_objective import BraninCurrin
from torch import Tensor

from mtbo_torch.experiments.compare import BenchmarkResult, Problem, compare
from mtbo_torch.metrics import hypervolume
from mtbo_torch.strategies import RandomSearch, SobolSearch, Strategy

BOX = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
STRATEGIES = {"Sobol": SobolSearch, "random": RandomSearch}


def evaluate(X: Tensor) -> Tensor:
    return torch.stack([X.sum(dim=-1), 3 - X.square().sum(dim=-1)], dim=-1)


PROBLEMS = {
    "mine": Problem(evaluate, BOX, ref_point=torch.zeros(2, dtype=torch.double), noise_scale=0.1),
    "BraninCurrin": BraninCurrin(negate=True),
}


def drop_seconds(result: BenchmarkResult) -> list[dict[str, object]]:
    return [{key: value for key, value in run.items() if key != "seconds"} for run in result.runs]


def test_runs_are_those_by_hand() -> None:
    result = compare(STRATEGIES, PROBLEMS, seeds=[3, 5], rounds=4)
    assert len(result.runs) == 8
    X = SobolSearch(2, bounds=BOX, seed=5).ask(4)
    run = next(r for r in result.runs if (r["problem"], r["strategy"], r["seed"]) == ("mine", "Sobol", 5))
    assert run["hypervolume"][-1] == pytest.approx(hypervolume(evaluate(X), torch.zeros(2).double()).item())
    turned = BraninCurrin(negate=True)
    X = SobolSearch(2, bounds=turned.bounds.double(), seed=3).ask(4)
    run = next(r for r in result.runs if (r["problem"], r["strategy"], r["seed"]) == ("BraninCurrin", "Sobol", 3))
    assert run["hypervolume"][-1] == pytest.approx(hypervolume(turned(X), turned.ref_point).item())
    assert result.table.shape == (8 * 4, 5)


def test_the_noise_is_that_of_the_seed() -> None:
    told: dict[str, Tensor] = {}

    def remember(name: str) -> type[Strategy]:
        class Remembering(SobolSearch):
            def tell(self, x: Tensor, y: Tensor) -> None:  # type: ignore[override]
                super().tell(x, y)
                told[name] = self.train_Y - evaluate(self.train_X)

        return Remembering

    compare({name: remember(name) for name in "ab"}, {"mine": PROBLEMS["mine"]}, seeds=[1], rounds=3)
    assert torch.equal(told["a"], told["b"])
    assert 0.01 < told["a"].std() < 0.3


def test_runs_in_the_file_are_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    whole = compare(STRATEGIES, PROBLEMS, seeds=range(3), rounds=3)
    compare(STRATEGIES, {"mine": PROBLEMS["mine"]}, seeds=range(2), rounds=3, path=path)

    def build(*arguments: object, **options: object) -> Strategy:
        raise AssertionError("it was run again")

    compare(dict.fromkeys(STRATEGIES, build), {"mine": PROBLEMS["mine"]}, seeds=range(2), rounds=3, path=path)
    with ThreadPoolExecutor(2) as executor:
        resumed = compare(STRATEGIES, PROBLEMS, seeds=range(3), rounds=3, path=path, executor=executor)
    assert drop_seconds(resumed) == drop_seconds(whole)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 12
    # Killed in the middle of a line: that run alone is repeated.
    text = path.read_text()
    path.write_text(text[:-20])
    assert compare(STRATEGIES, PROBLEMS, seeds=range(3), rounds=3, path=path).table.equals(resumed.table)
    assert path.read_text().count("\n") == 12
    (tmp_path / "notes.txt").write_text("no")
    with pytest.raises(ValueError, match=r"path should be a file of compare"):
        compare(STRATEGIES, PROBLEMS, seeds=range(3), rounds=3, path=tmp_path / "notes.txt")


def test_verdicts_need_two_standard_errors() -> None:
    def result(*pairs: tuple[float, float]) -> BenchmarkResult:
        runs = [
            {"problem": "p", "strategy": name, "seed": seed, "hypervolume": [0.0, pair[i]], "seconds": 1.0}
            for seed, pair in enumerate(pairs)
            for i, name in enumerate(("first", "second"))
        ]
        return BenchmarkResult(runs)

    (sentence,) = result((1.0, 0.5), (2.0, 1.4), (3.0, 2.6)).verdicts
    gaps = [0.5, 0.6, 0.4]
    assert sentence == f"p: first against second: more ({fmean(gaps):.3g} ± {stdev(gaps) / 3**0.5:.3g} in 3 pairs)"
    assert ": less (" in result((0.5, 1.0), (1.4, 2.0)).verdicts[0]
    assert ": within the noise (" in result((0.5, 1.0), (2.0, 1.4)).verdicts[0]
    assert ": undecided, with one seed (" in result((0.5, 1.0)).verdicts[0]
    shown = repr(result((1.0, 0.5), (2.0, 1.4)))
    assert "first (best)" in shown
    assert "second (best)" not in shown
    assert "first (best)" in result((1.0, 0.5))._repr_html_()
