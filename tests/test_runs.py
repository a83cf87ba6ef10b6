"""Stored runs of the benchmarks: what is there is not run again, and what was cut off is."""

from __future__ import annotations

from pathlib import Path

from runs import load_runs, run_missing


def test_only_missing_runs_are_made(tmp_path: Path) -> None:
    path, jobs = tmp_path / "new" / "runs.jsonl", [{"way": "a", "seed": seed} for seed in range(3)]
    first = run_missing(dict, jobs[1:2], path, workers=1)
    assert first == load_runs(path) == jobs[1:2]
    path.write_text('{"way": "a", "seed": 1, "share": 0.5}\n{"way": "b", "seed": 0}\n{"way": "a", "se')
    assert run_missing(dict, jobs, path, workers=1) == [jobs[0], jobs[1] | {"share": 0.5}, jobs[2]]
    assert len(load_runs(path)) == 4
    assert run_missing(dict, jobs, path, workers=1) == run_missing(dict, jobs[::-1], path, workers=1)[::-1]
    assert len(load_runs(path)) == 4
