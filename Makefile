PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test bench bench-nystrom bench-batching bench-learning bench-botorch clean

demo: $(READY)
	$(BIN)/mtbo-torch demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto

bench: $(READY)
	$(BIN)/python benchmarks/exact.py

bench-nystrom: $(READY)
	$(BIN)/python benchmarks/nystrom.py

bench-batching: $(READY)
	$(BIN)/python benchmarks/batching.py

bench-learning: $(READY)
	$(BIN)/python benchmarks/learning.py

bench-botorch: $(READY)
	$(BIN)/python benchmarks/botorch_problems.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
