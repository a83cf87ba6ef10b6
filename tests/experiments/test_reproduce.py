"""The command: what it leaves, that it survives being killed, and that a cluster gives the same."""

from __future__ import annotations

import csv
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from mtbo_torch.cli import main
from mtbo_torch.experiments import engine
from mtbo_torch.experiments import reproduce as module
from mtbo_torch.experiments.panels import Settings
from mtbo_torch.experiments.reproduce import Request, reproduce
from mtbo_torch.experiments.results import Claim, judge
from mtbo_torch.experiments.storage import Store

pytestmark = pytest.mark.usefixtures("plain_pictures")
FAST = ["--trials", "2", "--rounds", "12"]
RUNS = "runs/rkhs-2-chebyshev"
# Commits after every block of rounds, to be killed in between.
IMPATIENT = (
    "import sys; from mtbo_torch.experiments import engine; engine.SECONDS_BETWEEN_COMMITS = 0.0; "
    "from mtbo_torch.cli import main; main(sys.argv[1:])"
)


@pytest.fixture
def plain_pictures() -> None:
    import matplotlib as mpl

    mpl.use("Agg")


def table(out: Path, run: str = RUNS) -> bytes:
    return (out / run / "results.csv").read_bytes()


def test_a_panel_leaves_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "fig1b", *FAST, "--out", str(tmp_path)])
    assert (tmp_path / "fig1b/fig1b.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "fig1b/fig1b.svg").read_text()
    rows = list(csv.DictReader((tmp_path / "fig1b/summary.csv").read_text().splitlines()))
    names = ["MT-KB", "MT-KB-mixture", "MT-BKB", "MT-BKB-mixture", "IT-KB", "IT-BKB", "MOBO", "random", "Sobol"]
    assert [row["algorithm"] for row in rows] == names
    lines = list(csv.DictReader(table(tmp_path).decode().splitlines()))
    assert len(lines) == len(names) * 2 * 12
    finals = [float(line["average_regret"]) for line in lines if line["algorithm"] == "MT-KB" and line["round"] == "12"]
    assert float(rows[0]["final_average_regret_mean"]) == pytest.approx(sum(finals) / 2, rel=1e-4)
    output = capsys.readouterr().out
    assert "MT-KB ends below IT-KB" in output
    page = (tmp_path / "index.html").read_text()
    assert all(
        text in page for text in ("fig1b/fig1b.svg", "MT-KB ends below IT-KB", "Sobol", "botorch", "sine weights")
    )


@pytest.mark.slow
def test_panels_share_runs_and_more_can_be_added(tmp_path: Path) -> None:
    main(["reproduce", "fig1b", *FAST, "--out", str(tmp_path), "--algorithms", "mtkb", "random"])
    before = table(tmp_path)
    main(["reproduce", "fig3a", *FAST, "--out", str(tmp_path), "--algorithms", "mtkb", "random"])
    assert table(tmp_path) == before
    main(
        [
            "reproduce",
            "fig1b",
            "--trials",
            "3",
            "--rounds",
            "12",
            "--out",
            str(tmp_path),
            "--algorithms",
            "mobo",
            "mtkb",
        ]
    )
    rows = table(tmp_path).decode().splitlines()[1:]
    counts = {name: sum(row.startswith(f"{name},") for row in rows) for name in ("MT-KB", "MOBO", "random")}
    assert counts == {"MT-KB": 36, "MOBO": 36, "random": 24}
    assert set(before.decode().splitlines()[1:]) <= set(rows)
    page = (tmp_path / "index.html").read_text()
    assert "fig3a/fig3a.svg" in page
    assert "fig1b/fig1b.svg" in page
    assert page.index('href="#fig1b"') < page.index('href="#fig3a"') < page.index('id="fig1b"')


@pytest.mark.slow
def test_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "fig1a", *FAST, "--out", str(tmp_path)])
    assert "ω = 0.25" in capsys.readouterr().out
    assert len(list((tmp_path / "runs").iterdir())) == 5


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", IMPATIENT, *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow  # tests/test_faults.py kills some runs quickly
def test_killed_and_continued_ends_with_the_same_table(tmp_path: Path) -> None:
    arguments = ["reproduce", "fig1b", "--trials", "2", "--rounds", "60", "--algorithms", "MT-BKB", "IT-KB", "--out"]
    main([*arguments, str(tmp_path / "whole")])
    out, sizes = tmp_path / "killed", []
    for wanted in (1_000, 20_000):
        process = start([*arguments, str(out)])
        path = out / RUNS / "results.csv"
        while process.poll() is None and not (path.exists() and path.stat().st_size > wanted):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL
        sizes.append(path.stat().st_size)
    assert sizes[0] < sizes[1] < len(table(tmp_path / "whole"))
    main([*arguments, str(out)])
    assert table(out) == table(tmp_path / "whole")


def test_an_interrupted_part_is_finished_whatever_is_asked_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SECONDS_BETWEEN_COMMITS", 0.0)
    request = Request(["fig1b"], tmp_path / "a", Settings(rounds=30), ["MT-KB"], trials=2)
    calls, append = [], Store.append

    def failing(self: Store, *arguments: object) -> None:
        append(self, *arguments)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "append", failing)
    with pytest.raises(KeyboardInterrupt):
        reproduce(request)
    monkeypatch.setattr(Store, "append", append)
    reproduce(Request(["fig1b"], tmp_path / "a", Settings(rounds=30), ["MOBO"], trials=1))
    reproduce(Request(["fig1b"], tmp_path / "b", Settings(rounds=30), ["MT-KB"], trials=2))
    reproduce(Request(["fig1b"], tmp_path / "b", Settings(rounds=30), ["MOBO"], trials=1))
    assert table(tmp_path / "a") == table(tmp_path / "b")


@pytest.mark.filterwarnings("default")
@pytest.mark.slow
def test_a_cluster_gives_the_same_table_though_a_worker_is_killed(tmp_path: Path) -> None:
    from distributed import LocalCluster

    settings, algorithms = Settings(rounds=40), ["MT-KB", "MT-BKB", "IT-KB", "MOBO"]
    local = Request(["fig1b"], tmp_path / "local", settings, algorithms, trials=4, batch=2)
    reproduce(local)
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        request = Request(
            ["fig1b"],
            tmp_path / "cluster",
            settings,
            algorithms,
            trials=4,
            batch=2,
            scheduler=cluster.scheduler_address,
        )
        victim = next(iter(cluster.workers.values())).pid
        killer = threading.Thread(target=kill_half_way, args=(tmp_path / "cluster" / RUNS / "state.pt", victim))
        killer.start()
        results, _ = reproduce(request)
        killer.join()
        with pytest.raises(ProcessLookupError):
            os.kill(victim, 0)
    assert results[0].curves["MT-KB"].shape == (4, 40)
    assert table(tmp_path / "cluster") == table(tmp_path / "local")
    gc.collect()  # what the cluster left open is closed here, not in the next test


def kill_half_way(first_result: Path, victim: int) -> None:
    while not first_result.exists():
        time.sleep(0.005)
    os.kill(victim, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig1x"], "Did you mean fig1"),
        (["fig1b", "--algorithms", "MTKBB"], "Did you mean MT-BKB|Did you mean MT-KB"),
        (["fig1b", "--device", "nonsense"], "--device should"),
        (["fig1b", "--device", "meta"], "--device should"),
        (["all", "fig9"], "PANEL should be among all, fig1a"),
        (["fig1b", "--trials", "abc"], "whole number, at least 1, got abc"),
        (["fig1b", "--dtype", "float8"], "float64, float32"),
        (["fig1b", "--norm-bound", "guess"], "exact, paper"),
        (["fig1b", "--rounds", "0"], "at least 1, got 0"),
        (["fig1b", "--seed", "-1"], "at least 0, got -1"),
        (["fig1f", "--sensor-data", "/no/such/file"], "/no/such/file should"),
        (["soil", "--soil-data", "/no/such/file"], "/no/such/file should"),
        (["fig1b", "--executor", "dask"], "--scheduler"),
        (["fig1b", "--executor", "slurm"], "local, dask"),
        (["fig1b", "--scheduler", "tcp://localhost:1"], "--executor dask"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_two(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as failure:
        main(["reproduce", *arguments, "--out", str(tmp_path / "out")])
    assert failure.value.code == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as failure:
        main(["reproduce", "fig1b", "--device", "cuda", "--out", str(tmp_path / "out")])
    assert failure.value.code == 2
    assert "--device should be usable on this machine, got cuda" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_an_unreachable_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_CONNECT", 1)
    with pytest.raises(ValueError, match=r"running Dask scheduler, got tcp://127\.0\.0\.1:9"):
        reproduce(Request(["fig1b"], tmp_path, Settings(rounds=2), ["random"], scheduler="tcp://127.0.0.1:9"))
    gc.collect()  # what the client left open is closed here, not in the next test


def test_an_output_folder_of_other_settings_or_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "fig1b", *FAST, "--out", str(tmp_path), "--algorithms", "random"])
    path = tmp_path / RUNS / "results.csv"

    def refused(arguments: list[str], message: str) -> None:
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        with pytest.raises(SystemExit) as failure:
            main(["reproduce", "fig1b", "--out", str(tmp_path), *arguments])
        assert failure.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    refused(["--trials", "2", "--rounds", "13"], "rounds is 12 there and 13 here")
    refused([*FAST, "--seed", "1"], "seed is 0 there and 1 here")
    path.write_bytes(path.read_bytes()[:-200])
    refused([*FAST, "--algorithms", "MT-KB"], "cut or changed")


def test_other_complaints_are_sentences_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as failure:
        main(["reproduce", "fig1b", *FAST, "--out", str(tmp_path / "file")])
    assert failure.value.code == 2
    assert capsys.readouterr().err == f"mtbo-torch: {tmp_path / 'file'} cannot be used: File exists.\n"


def test_interrupted_by_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_run_one", interrupted)
    with pytest.raises(SystemExit) as failure:
        main(["reproduce", "fig1b", *FAST, "--out", str(tmp_path)])
    assert failure.value.code == 130
    assert "give the same command again to continue" in capsys.readouterr().err


def test_changed_data_are_not_mixed_into_old_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["Xloc,Yloc,split,Cd,Co,Cr,Cu,Ni,Pb,Zn"]
    numbers = torch.rand(30, 9, generator=torch.Generator().manual_seed(0)).tolist()
    for i, (x, y, *metals) in enumerate(numbers):
        rows.append(",".join([str(x), str(y), "val" if i % 2 else "pred", *map(str, metals)]))
    (tmp_path / "soil.csv").write_text("\n".join(rows))
    options = [
        *FAST,
        "--algorithms",
        "random",
        "--out",
        str(tmp_path / "out"),
        "--soil-data",
        str(tmp_path / "soil.csv"),
    ]
    main(["reproduce", "soil", *options])
    first, second = rows[2].split(","), rows[4].split(",")
    first[3], second[3] = second[3], first[3]  # the same numbers, at other places
    rows[2], rows[4] = ",".join(first), ",".join(second)
    (tmp_path / "soil.csv").write_text("\n".join(rows))
    with pytest.raises(SystemExit):
        main(["reproduce", "soil", *options])
    assert "data sha256 is" in capsys.readouterr().err


@pytest.mark.slow
def test_panels_of_other_settings_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--algorithms", "mtkb", "itkb", "--out", str(tmp_path)]
    main(["reproduce", "fig1b", "--trials", "2", "--rounds", "12", *options])
    main(["reproduce", "fig1c", "--trials", "2", "--rounds", "10", *options])
    assert "undecided (fig1b was not run with the same settings)" in capsys.readouterr().out
    main(["reproduce", "fig1b", "--trials", "1", "--rounds", "12", *options])
    assert "MT-KB ends below IT-KB: undecided" in capsys.readouterr().out


def test_a_single_round(tmp_path: Path) -> None:
    main(
        [
            "reproduce",
            "fig1b",
            "fig1a",
            "--trials",
            "1",
            "--rounds",
            "1",
            "--out",
            str(tmp_path),
            "--algorithms",
            "mobo",
        ]
    )
    assert (tmp_path / "fig1a" / "fig1a.png").exists()


def test_a_panel_without_its_data_is_skipped_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["reproduce", "fig1f", "soil", *FAST, "--out", str(tmp_path)])
    output = capsys.readouterr().out
    assert "fig1f is skipped: it needs the Intel Berkeley lab's readings: pass --sensor-data" in output
    assert "soil is skipped" in output


def test_hypervolume_methods_are_left_out_where_they_cannot_run(tmp_path: Path) -> None:
    request = Request(["fig1c"], tmp_path, Settings(rounds=3), ["random", "qLogNEHVI", "random"], trials=1)
    results, notes = reproduce(request)
    assert notes == ["qLogNEHVI is left out of rkhs-20-chebyshev: it takes at most 4 tasks, not 20."]
    assert list(results[0].curves) == ["random"]
    assert len(table(tmp_path, "runs/rkhs-20-chebyshev").splitlines()) == 1 + 3


def test_claims_are_judged_by_the_numbers() -> None:
    finals = {"a": [1.0, 3.0], "b": [2.0, 4.0], "c": [2.5, 3.4], "d": [4.0, 1.0], "e": [0.0, 0.0]}

    def outcome(kind: str, *curves: str, elsewhere: dict[str, list[float]] | None = None) -> str:
        return judge(Claim("", kind, curves, "fig1b"), finals, elsewhere).outcome

    assert outcome("below", "a", "b") == "confirmed"
    assert outcome("below", "b", "a") == "not confirmed"
    assert outcome("below", "a", "d") == "within the noise"
    assert outcome("below", "a", "a") == "within the noise"
    assert outcome("below", "a", "z") == "undecided"
    assert outcome("near", "c", "b") == "confirmed"
    assert outcome("near", "b", "a") == "not confirmed"
    assert outcome("falls", "a", "c", "b") == "confirmed"
    assert outcome("falls", "a", "d", "b") == "confirmed"
    assert outcome("falls", "c", "a", "b") == "within the noise"
    assert outcome("falls", "a", "d") == "within the noise"
    assert outcome("falls", "b", "a") == "not confirmed"
    assert outcome("gap", "a", "b") == "undecided"
    assert outcome("gap", "e", "b", elsewhere={"e": [1.0], "b": [1.2]}) == "undecided"
    assert outcome("gap", "a", "b", elsewhere={"a": [1.0], "b": [1.2]}) == "confirmed"
    assert outcome("gap", "a", "b", elsewhere={"a": [1.0], "b": [1.8]}) == "not confirmed"
    assert "gap 1 ± 0" in judge(Claim("", "below", ("a", "b")), finals).evidence
