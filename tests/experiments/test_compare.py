"""Benchmarks of one's own: paired runs, resumed from a folder, wherever they run, and honest verdicts."""

from __future__ import annotations

import csv
import gc
import multiprocessing
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
import pytest
import torch
from botorch.test_functions.multi_objective import BraninCurrin
from torch import Tensor

from mtbo_torch import Optimizer
from mtbo_torch.experiments import engine
from mtbo_torch.experiments.compare import Comparison, Problem, compare
from mtbo_torch.experiments.results import Claim, Panel, PanelResult
from mtbo_torch.experiments.storage import Store
from mtbo_torch.metrics import hypervolume
from mtbo_torch.report import write_comparison
from mtbo_torch.strategies import NEHVI, RandomSearch, SobolSearch, Strategy

BOX = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.double)
STRATEGIES = {"Sobol": SobolSearch, "random": RandomSearch}


def evaluate(X: Tensor) -> Tensor:
    return torch.stack([X.sum(dim=-1), 3 - X.square().sum(dim=-1)], dim=-1)


PROBLEMS = {
    "mine": Problem(evaluate, BOX, ref_point=torch.zeros(2, dtype=torch.double), noise_scale=0.1),
    "BraninCurrin": BraninCurrin(negate=True),
}
MINE = {"mine": PROBLEMS["mine"]}


def read(path: Path, problem: str = "mine") -> list[dict[str, str]]:
    return list(csv.DictReader((path / "runs" / problem / "results.csv").read_text().splitlines()))


def forbid(*arguments: object, **options: object) -> Strategy:
    raise AssertionError("it was run again")


def test_runs_are_those_by_hand(tmp_path: Path) -> None:
    table = compare(STRATEGIES, PROBLEMS, seeds=[3, 5], rounds=4, path=tmp_path).table
    assert table.shape == (8 * 4, 5)
    last = table[table["round"] == 4].set_index(["problem", "strategy", "seed"])["hypervolume"]
    X = SobolSearch(2, bounds=BOX, seed=5).ask(4)
    assert last["mine", "Sobol", 5] == hypervolume(evaluate(X), torch.zeros(2).double()).item()
    turned = BraninCurrin(negate=True)
    X = SobolSearch(2, bounds=turned.bounds.double(), seed=3).ask(4)
    assert last["BraninCurrin", "Sobol", 3] == pytest.approx(hypervolume(turned(X), turned.ref_point).item())
    rows = [row for row in read(tmp_path, "BraninCurrin") if (row["algorithm"], row["trial"]) == ("Sobol", "3")]
    assert [[float(row["x_1"]), float(row["x_2"])] for row in rows] == X.tolist()
    assert [float(row["y_1"]) for row in rows] == pytest.approx(turned(X)[:, 0].tolist())


def test_the_noise_is_that_of_the_seed() -> None:
    told: dict[str, Tensor] = {}

    def remember(name: str) -> type[Strategy]:
        class Remembering(SobolSearch):
            def tell(self, x: Tensor, y: Tensor) -> None:  # type: ignore[override]
                super().tell(x, y)
                told[name] = self.train_Y - evaluate(self.train_X)

        return Remembering

    compare({name: remember(name) for name in "ab"}, MINE, seeds=[1], rounds=3)
    assert torch.equal(told["a"], told["b"])
    assert 0.01 < told["a"].std() < 0.3


@pytest.mark.parametrize("kind", [SobolSearch, pytest.param(Optimizer, marks=pytest.mark.slow)])
def test_seeds_side_by_side_are_the_same_runs(kind: Callable[..., Strategy]) -> None:
    alone, beside = (compare({"s": kind}, MINE, seeds=[4, 0, 7], rounds=8, batch=n).table for n in (1, 2))
    assert beside["hypervolume"].tolist() == pytest.approx(alone["hypervolume"].tolist(), rel=1e-6)
    if kind is SobolSearch:
        assert beside.equals(alone)

    def build(num_tasks: int, bounds: Tensor, seed: int | list[int]) -> Strategy:
        return kind(num_tasks, bounds=bounds, seed=seed if isinstance(seed, int) else seed[0])

    with pytest.raises(ValueError, match=r"s should run 2 seeds side by side, got a strategy of 1\. Let it pass"):
        compare({"s": build}, MINE, seeds=[4, 0], rounds=8, batch=2)


def test_what_is_in_the_folder_is_not_repeated(tmp_path: Path) -> None:
    whole = compare(STRATEGIES, PROBLEMS, seeds=range(3), rounds=3)
    compare(STRATEGIES, MINE, seeds=range(2), rounds=3, path=tmp_path)
    compare(dict.fromkeys(STRATEGIES, forbid), MINE, seeds=range(2), rounds=3, path=tmp_path)
    with ThreadPoolExecutor(2) as executor:
        resumed = compare(STRATEGIES, PROBLEMS, seeds=range(3), rounds=3, path=tmp_path, executor=executor)
    assert resumed.table.equals(whole.table)
    assert len(read(tmp_path)) == 2 * 3 * 3
    # Another strategy joins those that are there; of these, one may be left out.
    more = compare({"other": RandomSearch, "Sobol": forbid}, MINE, seeds=range(2), rounds=3, path=tmp_path)
    assert list(more.panels[0].curves) == ["other", "Sobol"]
    assert {row["algorithm"] for row in read(tmp_path)} == {"other", "Sobol", "random"}
    with pytest.raises(ValueError, match="rounds is 3 there and 4 here"):
        compare(STRATEGIES, MINE, seeds=range(3), rounds=4, path=tmp_path)
    moved = {"mine": Problem(evaluate, 2 * BOX, torch.zeros(2), noise_scale=0.1)}
    with pytest.raises(ValueError, match=r"bounds is .* there and .* here\. Choose another folder, or delete"):
        compare(STRATEGIES, moved, seeds=range(3), rounds=3, path=tmp_path)


@pytest.mark.parametrize("kind", [SobolSearch, pytest.param(Optimizer, marks=pytest.mark.slow)])
def test_interrupted_in_the_middle_of_a_run_it_goes_on_there(
    kind: Callable[..., Strategy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SECONDS_BETWEEN_COMMITS", 0.0)
    append = Store.append

    def be_stopped(self: Store, *arguments: Any) -> None:
        append(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "append", be_stopped)
    with pytest.raises(KeyboardInterrupt):
        compare({"s": kind}, MINE, seeds=[1], rounds=12, path=tmp_path)
    monkeypatch.setattr(Store, "append", append)
    assert len(read(tmp_path)) == 10
    with pytest.raises(ValueError, match=r"has an interrupted run of s, got other\. Name s, too"):
        compare({"other": kind}, MINE, seeds=[1], rounds=12, path=tmp_path)
    resumed = compare({"s": kind}, MINE, seeds=[1], rounds=12, path=tmp_path)
    assert resumed.table.equals(compare({"s": kind}, MINE, seeds=[1], rounds=12).table)


def unsavable(num_tasks: int, **where: Any) -> Strategy:
    class Unsavable(SobolSearch):
        def state_dict(self) -> dict[str, Any]:
            raise AssertionError("nobody will continue it")

    return Unsavable(num_tasks, **where)


def test_without_a_folder_nothing_has_to_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SECONDS_BETWEEN_COMMITS", 0.0)
    named = compare({"s": unsavable}, MINE, seeds=[1], rounds=12)
    assert named.table.equals(compare({"s": SobolSearch}, MINE, seeds=[1], rounds=12).table)


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_processes_and_a_cluster_give_the_same_table(tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    strategies = STRATEGIES | {"NEHVI": NEHVI}
    here = compare(strategies, PROBLEMS, seeds=range(3), rounds=4)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        there = compare(strategies, PROBLEMS, seeds=range(3), rounds=4, executor=executor)
    assert there.table.equals(here.table)
    problems = PROBLEMS | {"mine": Problem(lambda X: evaluate(X), BOX, torch.zeros(2), noise_scale=0.1)}
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        executor = client.get_executor(pure=False)
        there = compare(strategies, problems, seeds=range(3), rounds=4, path=tmp_path, executor=executor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what the cluster left open is closed here, not in the next test
    assert there.table.equals(here.table)
    assert len(read(tmp_path)) == 3 * 3 * 4


def make_result(*pairs: tuple[float, float]) -> Comparison:
    curves = {name: torch.tensor([[0.0, pair[i]] for pair in pairs]) for i, name in enumerate(("first", "second"))}
    claim = Claim("first ends above second", "above", ("first", "second"))
    panel = Panel("p", "a problem", {"": "p"}, "hypervolume", (claim,))
    columns = {name: {"hypervolume": curve.double()} for name, curve in curves.items()}
    result = PanelResult(panel, columns, dict.fromkeys(columns, 1.0), {"p": {}})
    return Comparison([result], tuple(range(len(pairs))))


def test_verdicts_need_two_standard_errors() -> None:
    (sentence,) = make_result((1.0, 0.5), (2.0, 1.25), (3.0, 2.5)).verdicts
    gaps = [0.5, 0.75, 0.5]
    evidence = f"2 against 1.42, gap {fmean(gaps):.3g} ± {stdev(gaps) / 3**0.5:.3g}"
    assert sentence == f"p: first ends above second: confirmed ({evidence})"
    assert ": not confirmed (" in make_result((0.5, 1.0), (1.4, 2.0)).verdicts[0]
    assert ": within the noise (" in make_result((0.5, 1.0), (2.0, 1.4)).verdicts[0]
    assert ": undecided (" in make_result((0.5, 1.0)).verdicts[0]
    result = make_result((1.0, 0.5), (2.0, 1.4))
    for shown in (repr(result), result._repr_html_()):
        assert "★ 1.5 ± 0.707" in shown
        assert shown.count("★") == 1
        assert "first ends above second: confirmed" in shown


def test_a_page_shows_all_of_it(tmp_path: Path) -> None:
    mpl.use("Agg")
    result = compare(STRATEGIES, PROBLEMS, seeds=range(3), rounds=4, path=tmp_path / "runs")
    for folder, has_tables in (("runs", True), ("elsewhere", False)):
        page = write_comparison(result, tmp_path / folder).read_text()
        for name in PROBLEMS:
            assert page.index(f'href="#{name}"') < page.index(f'id="{name}"') < page.index(f"{name}/{name}.svg")
            assert (f'href="runs/{name}/results.csv"' in page) is has_tables
            assert "<svg" in (tmp_path / folder / name / f"{name}.svg").read_text()
            assert len((tmp_path / folder / name / "summary.csv").read_text().splitlines()) == 3
        assert page.count("★") == 2 * 2  # the best of each table, and what the star means
        assert all(verdict.partition(": ")[2].split(" (")[0] in page for verdict in result.verdicts)
        assert "aper" not in page
