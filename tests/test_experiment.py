"""Experiments from table to table."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch

from mtbo_torch import MTBKB, MTKB, Category, Experiment, ICMKernel, Inputs, Integer, Optimizer, Ordered, Real, grid
from mtbo_torch.strategies import NEHVI, RandomSearch, SobolSearch
from mtbo_torch.strategies.goal import read_aims

INPUTS = {
    "temperature": Real(300, 900),
    "loading": Real(1e-3, 1, log=True),
    "steps": Integer(1, 6),
    "catalyst": Category("Pd", "Ni", "Cu"),
}
TASKS = {"yield": "maximize", "cost": "minimize", "waste": "watch"}


def measure(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with their values."""
    u, v = (rows["temperature"] - 300) / 600, np.log10(rows["loading"]) / 3 + 1
    k = rows["catalyst"].map({"Pd": 1.0, "Ni": 0.7, "Cu": 0.4}).astype(float)
    values = {"yield": k * np.exp(-4 * (u - 0.6) ** 2 - 3 * (v - 0.5) ** 2), "cost": k + u / 2 + v, "waste": u}
    return rows.assign(**{name: value + 0.01 * rows["steps"] for name, value in values.items()})


def make_rows(count: int, seed: int = 0) -> pd.DataFrame:
    search = Experiment(INPUTS, TASKS, strategy=SobolSearch, seed=seed)
    return measure(search.ask(count).reset_index(drop=True))


@cache
def _started(count: int) -> Experiment:
    experiment = Experiment(INPUTS, TASKS)
    experiment.tell(make_rows(count))
    return experiment


def started(count: int = 12) -> Experiment:
    """What has learned from some rows, which takes a while, once."""
    return copy.deepcopy(_started(count))


def same(ours: pd.DataFrame, theirs: pd.DataFrame, **options: Any) -> None:
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False, **options)


def test_from_table_to_table() -> None:
    experiment = started()
    first = experiment.ask(2)
    assert list(first.columns) == [*INPUTS, *TASKS]
    assert first[list(TASKS)].isna().all().all()
    assert first.index.name == "asked"
    assert experiment.strategy.num_observations == 12
    experiment.tell(measure(first).assign(asked=first.index))  # twice the same number does no harm
    assert not experiment.strategy.pending
    same(experiment.table, pd.concat([make_rows(12), measure(first)], ignore_index=True), rtol=1e-12)
    assert "yield (max)" in repr(experiment)
    assert "Pd, Ni, Cu" in experiment._repr_html_()


@pytest.mark.slow
def test_fifteen_lines_lead_from_table_to_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).parent.parent / "docs/guides/tables.md"
    laboratory, lines = re.findall(r"```python\n(.*?)```", guide.read_text(), flags=re.DOTALL)[:2]
    assert len([line for line in lines.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(laboratory, names)
    exec(lines, names)
    found = pd.read_csv("all.csv")
    assert list(found.columns) == [*names["inputs"], *names["tasks"]]
    assert len(found) == 14
    assert int(found.isna().sum().sum()) == 1


def test_the_order_of_columns_and_strangers_do_not_matter() -> None:
    rows = make_rows(4)
    plain, other = Experiment(INPUTS, TASKS), Experiment(INPUTS, TASKS)
    plain.tell(rows)
    other.tell(rows[[*reversed(rows.columns)]].assign(operator="me"))
    assert torch.equal(other.strategy.train_X, plain.strategy.train_X)
    assert torch.equal(other.strategy.train_Y, plain.strategy.train_Y)
    same(other.table, plain.table)


def test_the_experiment_is_the_strategy() -> None:
    experiment = started()
    inputs = Inputs(INPUTS)
    optimizer = Optimizer(3, bounds=inputs, signs=(1, -1, 0))
    rows = make_rows(12)
    optimizer.tell(inputs.encode(rows.to_dict("records")), torch.tensor(rows[list(TASKS)].to_numpy()))
    in_a_table = inputs.encode(inputs.decode(optimizer.ask()))  # values on a logarithmic scale have twelve digits there
    assert torch.equal(inputs.encode(experiment.ask().to_dict("records")), in_a_table)


def test_a_changed_set_point_settles_its_proposal(tmp_path: Path) -> None:
    experiment = started(4)
    proposals = experiment.ask(3)
    rounded = proposals.assign(temperature=(proposals["temperature"] / 50).round() * 50)
    measured = measure(rounded)
    measured.iloc[[1]].to_csv(tmp_path / "second.csv")
    experiment.tell(pd.read_csv(tmp_path / "second.csv"))
    assert list(experiment.strategy.pending) == [0, 2]
    experiment.tell(measured.iloc[[2, 0]])
    assert not experiment.strategy.pending
    assert experiment.table["temperature"].tail(3).tolist() == rounded["temperature"].iloc[[1, 2, 0]].tolist()


def test_a_row_as_proposed_settles_its_proposal_without_a_number() -> None:
    experiment = started(4)
    done = measure(experiment.ask(2).reset_index(drop=True))
    experiment.tell(done.iloc[[1]])
    assert list(experiment.strategy.pending) == [0]


def test_missing_cells_replicates_and_rows_that_wait() -> None:
    experiment = Experiment(INPUTS, TASKS)
    rows = make_rows(10).astype({"cost": object})
    rows.loc[2, "cost"], rows.loc[3, "waste"], rows.loc[4, list(TASKS)] = None, np.nan, np.nan
    rows = pd.concat([rows, rows.iloc[[0]]], ignore_index=True)
    experiment.tell(rows)
    assert experiment.strategy.num_observations == 10
    assert len(experiment.strategy.pending) == 1
    assert experiment.table.tail(1)["temperature"].item() == pytest.approx(rows.loc[4, "temperature"])
    assert experiment.table.iloc[2, 5:].isna().tolist() == [True, False]
    experiment.ask()


def test_a_column_says_how_noisy_values_are(tmp_path: Path) -> None:
    rows = make_rows(4)  # what follows from it is in tests/strategies/test_noise.py
    rows["yield sd"] = [0.02, None, 0.05, 0.05]
    experiment = Experiment(INPUTS, TASKS)
    experiment.tell(rows)
    sd = torch.full((4, 3), torch.nan, dtype=torch.double)
    sd[:, 0] = torch.tensor(rows["yield sd"].to_numpy(dtype=float))
    torch.testing.assert_close(experiment.strategy.train_sd, sd, equal_nan=True)
    assert list(experiment.table) == [*INPUTS, "yield", "yield sd", "cost", "waste"]
    again = Experiment(INPUTS, TASKS)
    again.tell(experiment.table)
    torch.testing.assert_close(again.strategy.train_sd, sd, equal_nan=True)
    experiment.correct(1, **{"yield": 0.3, "yield sd": 0.1})
    assert experiment.table.loc[1, ["yield", "yield sd"]].tolist() == [0.3, 0.1]
    experiment.remove(0)
    experiment.save(tmp_path / "run.pt")
    same(Experiment.load(tmp_path / "run.pt").table, experiment.table)


def test_a_run_is_rebuilt_from_its_table() -> None:
    experiment = started(4)
    experiment.ask(2)
    again = Experiment(INPUTS, TASKS)
    again.tell(experiment.table)
    same(again.table, experiment.table, rtol=1e-12)
    assert len(again.strategy.pending) == 2


def test_inputs_are_fixed_for_one_proposal() -> None:
    for count in (2, 12):  # within the design and after it
        fixed = started(count).ask(2, fixed={"catalyst": "Cu", "steps": 4})
        assert fixed["catalyst"].tolist() == ["Cu", "Cu"]
        assert fixed["steps"].tolist() == [4, 4]


@pytest.mark.filterwarnings("ignore:A not p.d.")  # BoTorch's models
@pytest.mark.parametrize(
    "kind", [MTKB, RandomSearch, SobolSearch, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (MTBKB, NEHVI))]
)
def test_other_strategies(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "THINNING", 1)  # of points between limits, which need not be drawn evenly here
    inputs = Inputs({"a": Real(0, 1), "b": Real(0, 1), "c": Category("x", "y"), "n": Ordered(1, 2, 4)}, ["a + b <= 1"])
    options = {"refit_every": 100, "num_restarts": 2, "raw_samples": 16} if kind in (MTKB, MTBKB) else {}
    experiment = Experiment(inputs, {"first": "maximize", "second": "minimize"}, strategy=kind, **options)
    for q in (10, 2) if kind is NEHVI else (3, 2):  # it has a first design
        rows = experiment.ask(q, fixed={"c": "y"})
        assert (rows["a"] + rows["b"] <= 1 + 1e-6).all()
        assert set(rows["c"]) == {"y"}
        assert set(rows["n"]) <= {1, 2, 4}
        experiment.tell(rows.assign(first=rows["a"] + rows["n"], second=rows["b"] ** 2))


def test_a_known_kernel_with_its_guarantee(tmp_path: Path) -> None:
    kernel = ICMKernel(gpytorch.kernels.RBFKernel(active_dims=(0,)), torch.eye(2, dtype=torch.double))
    inputs = {"x": Real(0, 1), "c": Category("a", "b")}
    options = {"strategy": MTKB, "kernel": kernel, "norm_bound": 5.0, "noise_scale": 0.1}
    experiment = Experiment(inputs, {"f": "maximize", "g": "maximize"}, **options)
    rows = experiment.ask(3)
    experiment.tell(rows.assign(f=rows["x"], g=-rows["x"]))
    assert "hold with probability 0.9" in repr(experiment)
    experiment.save(tmp_path / "run.pt")
    with pytest.raises(ValueError, match=r"options should have kernel, which is not in the file, got \[\]"):
        Experiment.load(tmp_path / "run.pt")
    same(Experiment.load(tmp_path / "run.pt", kernel=kernel).ask(), experiment.ask())


def test_choices_from_a_table() -> None:
    choices = make_rows(40)[list(INPUTS)]
    experiment = Experiment(INPUTS, TASKS, choices=choices, repeat=False)
    asked = [experiment.ask(5, fixed={"catalyst": "Ni"}) for _ in range(2)]
    for rows in asked:
        merged = rows.merge(choices.round(9), on=["steps", "catalyst"], suffixes=("", "_"))
        assert len(merged) >= 5
        assert set(rows["catalyst"]) == {"Ni"}
        experiment.tell(measure(rows))
    assert not pd.concat(asked)["temperature"].round(9).duplicated().any()


def test_saving_continues_bit_for_bit_and_with_other_bounds(tmp_path: Path) -> None:
    experiment = started()
    experiment.ask()
    experiment.save(tmp_path / "run.pt")
    again = Experiment.load(tmp_path / "run.pt")
    same(again.table, experiment.table)
    same(again.ask(), experiment.ask())
    wider = Experiment.load(tmp_path / "run.pt", inputs=INPUTS | {"temperature": Real(300, 1000)})
    assert wider.strategy.num_observations == 12
    assert list(wider.strategy.pending) == [0]
    wider.tell(measure(make_rows(1).assign(temperature=950.0)))
    assert list(tmp_path.iterdir()) == [tmp_path / "run.pt"]


def test_a_strategy_takes_over_with_other_settings() -> None:
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    old = MTKB(2, bounds=bounds, refit_every=2, radius=1.0)
    x = torch.rand(4, 1, dtype=torch.double)
    old.tell(x, torch.cat([x, -x], dim=-1))
    old.ask()
    new = MTKB(2, bounds=2 * bounds, refit_every=4, radius=2.0)
    with pytest.raises(ValueError, match="same settings, got others: radius"):
        new.load_state_dict(old.state_dict())
    new.load_state_dict(old.state_dict(), strict=False)
    assert torch.equal(new.train_X, x)
    assert list(new.pending) == [0]
    fresh = MTKB(2, bounds=2 * bounds, refit_every=4, radius=2.0)
    fresh.tell(x, torch.cat([x, -x], dim=-1))
    assert torch.equal(new.covariance_norm(x), fresh.covariance_norm(x))


@pytest.mark.slow
def test_wrong_values_are_corrected_and_removed() -> None:
    experiment, right = started(), started()
    experiment.tell(measure(make_rows(1, seed=5)).assign(cost=100.0))
    experiment.correct(3, cost=-50.0)
    assert experiment.table.loc[3, "cost"] == -50
    experiment.correct(3, cost=right.table.loc[3, "cost"])
    experiment.remove(12)
    same(experiment.table, right.table)
    ours, theirs = experiment.strategy.model, right.strategy.model
    X = experiment.strategy.train_X
    torch.testing.assert_close(ours.mean(X), theirs.mean(X), rtol=1e-4, atol=1e-4)
    experiment.remove(list(range(12)))
    assert len(experiment.table) == 0
    same(experiment.ask(), Experiment(INPUTS, TASKS).ask())


def test_a_correction_leaves_no_certificate() -> None:
    kernel = ICMKernel(gpytorch.kernels.RBFKernel(), torch.eye(2, dtype=torch.double))
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    strategy = MTKB(kernel, bounds=bounds, norm_bound=5.0, noise_scale=0.1)
    x = strategy.ask()
    strategy.tell(x, torch.cat([x, -x], dim=-1))
    assert strategy.certificate().isfinite().all()
    strategy.correct(0, torch.cat([x, x], dim=-1))
    assert strategy.certificate().isinf().all()
    again = MTKB(kernel, bounds=bounds, norm_bound=5.0, noise_scale=0.1)
    again.load_state_dict(strategy.state_dict())
    assert torch.equal(again.ask(), strategy.ask())


def test_predictions_are_the_models() -> None:
    experiment = started()
    rows = make_rows(5, seed=3)
    predicted = experiment.predict(rows)
    posterior = experiment.strategy.model.posterior(experiment.inputs.encode(rows.to_dict("records")))
    np.testing.assert_allclose(predicted[list(TASKS)], posterior.mean.detach(), rtol=1e-12)
    np.testing.assert_allclose(predicted[[f"{t} sd" for t in TASKS]], posterior.variance.sqrt().detach(), rtol=1e-12)
    with pytest.raises(ValueError, match="with a model that was told something, got RandomSearch with 0"):
        Experiment(INPUTS, TASKS, strategy=RandomSearch).predict(rows)


def test_arrays_and_lists_are_welcome() -> None:
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    X, Y = np.random.default_rng(0).random((5, 1)), np.random.default_rng(1).random((5, 2))
    told = [(X, Y), (X.tolist(), Y.tolist()), (torch.tensor(X), torch.tensor(Y))]
    strategies = [Optimizer(2, bounds=bounds) for _ in told]
    for strategy, (x, y) in zip(strategies, told, strict=True):
        strategy.tell(x, y)
    assert all(torch.equal(strategy.ask(), strategies[0].ask()) for strategy in strategies[1:2])
    strategies[2].tell(X[0].astype(np.float32), torch.tensor(Y[0]).float())
    assert strategies[2].train_X.dtype == torch.double


def test_points_outside_are_told_with_a_word() -> None:
    box = Optimizer(2, bounds=torch.tensor([[300.0], [900.0]], dtype=torch.double))
    with pytest.warns(UserWarning, match="outside the bounds: x_1 is 1350, not in 300 to 900"):
        box.tell([1350.0], [0.0, 1.0])
    choices = Optimizer(2, choices=torch.tensor([[0.0], [1.0]], dtype=torch.double))
    with pytest.warns(UserWarning, match=r"A point told is none of the 2 choices: \[0\.5\]"):
        choices.tell([0.5], [0.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        box.tell([900.0 + 1e-9], [0.0, 1.0])


def test_aims_in_words() -> None:
    aims = {"a": "maximize, at least 0.5", "b": "at most -2e1", "c": "minimize", "d": "watch"}
    others = (torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[3.0]]))
    signs, constraints = read_aims(aims, 4, others)
    assert signs == [1, 0, -1, 0]
    assert constraints is not None
    assert constraints[0].tolist() == [[-1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]]
    assert constraints[1].tolist() == [-0.5, -20, 3]


BAD: dict[str, tuple[Callable[[Experiment], Any], str]] = {
    "not a table": (lambda e: e.tell([1.0]), "table should be a pandas DataFrame, got list"),
    "no rows": (lambda e: e.tell(make_rows(2).iloc[:0]), "table should have at least one row"),
    "no column": (lambda e: e.tell(make_rows(2).drop(columns="cost")), "Add cost."),
    "two columns": (lambda e: e.tell(pd.concat([make_rows(2), make_rows(2)], axis=1)), "Rename those that are there"),
    "outside": (lambda e: e.tell(make_rows(2).assign(temperature=1350)), "temperature should be from 300 to 900"),
    "no number": (lambda e: e.tell(make_rows(2).assign(cost="cheap")), "cost should be a number or empty, got 'cheap'"),
    "infinite": (lambda e: e.tell(make_rows(2).assign(cost=np.inf)), "cost should be finite or empty, got inf"),
    "not asked": (lambda e: e.tell(make_rows(1).assign(asked=77)), '"asked" should be one of the pending'),
    "asked twice": (lambda e: e.tell(make_rows(2).assign(asked=0)), '"asked" should name each proposal once'),
    "fixed": (lambda e: e.ask(fixed={"catalyst": "Pt"}), "catalyst should be one of Pd, Ni, Cu, got 'Pt'"),
    "row": (lambda e: e.remove(99), "rows should be different numbers from 0 to 11, got 99"),
    "task": (lambda e: e.correct(0, price=1.0), "values should be of the tasks yield, cost, waste, got ['price']"),
    "value": (lambda e: e.correct(0, cost="cheap"), "cost should be a number or empty, got 'cheap'"),
    "noise": (
        lambda e: e.tell(make_rows(2).assign(**{"yield sd": [0.1, 0.0]})),
        "yield sd should be a positive number or empty, got 0.0 in row 1",
    ),
    "sd": (lambda e: e.correct(0, **{"cost sd": -1}), "cost sd should be a positive number or empty, got -1"),
    "frame": (lambda e: e.strategy.tell(make_rows(1), make_rows(1)), "which takes tables"),
    "predict": (lambda e: e.predict(make_rows(1).drop(columns="steps")), "Add steps."),
}  # fmt: skip


def test_bad_input_is_refused_and_loses_nothing() -> None:
    experiment = started()
    experiment.ask()
    untouched = copy.deepcopy(experiment)
    for call, message in BAD.values():
        with pytest.raises(ValueError, match=re.escape(message)):
            call(experiment)
    same(experiment.table, untouched.table)
    same(experiment.ask(), untouched.ask())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Experiment({"a": Real(0, 1)}, {}), "tasks should be a dictionary with at least one task, got {}"),
        (lambda: Experiment({"a": Real(0, 1)}, {"a": "maximize"}), "tasks should have names of their own, got ['a']"),
        (
            lambda: Experiment(INPUTS, {"y": "maximize", "y sd": "minimize"}),
            "tasks should have names of their own, got ['y sd']",
        ),
        (lambda: Experiment({"y sd": Real(0, 1)}, {"y": "maximize"}), "names of their own, got ['y sd']"),
        (lambda: Experiment({"asked": Real(0, 1)}, {"y": "maximize"}), "names of their own, got ['asked']"),
        (lambda: Experiment(INPUTS, {"y": "bigger"}), 'y should be to "maximize", to "minimize", to "watch"'),
        (lambda: Experiment(INPUTS, TASKS, strategy="Optimizer"), "strategy should be a class such as Optimizer"),
        (lambda: Experiment(INPUTS, TASKS, seed=[1, 2]), "seed should be one number for an Experiment, got [1, 2]"),
        (lambda: Experiment(INPUTS, TASKS, choices=[1]), "choices should be a pandas DataFrame, got list"),
        (lambda: read_aims({"a": "maximize"}, 2), "signs should name each of the 2 tasks, got ['a']"),
    ],
)  # fmt: skip
def test_bad_descriptions_are_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("yield went up")
    with pytest.raises(ValueError, match="path should be a file that save"):
        Experiment.load(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError):
        Experiment.load(tmp_path / "missing.pt")


def test_without_pandas_it_is_said_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match=r"Tables need pandas. Run: pip install \"mtbo-torch\[table\]\""):
        Experiment(INPUTS, TASKS).ask()
