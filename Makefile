PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# What is run under torch's other default dtype as well; the whole of tests/ can be.
OTHER_DEFAULT := tests/test_kernels.py tests/test_models.py tests/test_acquisition.py tests/regression tests/strategies

.PHONY: demo test test-all notebooks bench bench-nystrom bench-batching bench-learning bench-botorch bench-guarantees bench-laboratory bench-large clean

demo: $(READY)
	$(BIN)/mtbo-torch demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal

# What `make test` leaves out: the slow tests, and some again under torch's other default dtype.
test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal -m "slow and not cuda"
	MTBO_TEST_DTYPE=float64 OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal $(OTHER_DEFAULT)

notebooks: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/execute.py

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

bench-guarantees: $(READY)
	$(BIN)/python benchmarks/guarantees.py

bench-laboratory: $(READY)
	$(BIN)/python benchmarks/laboratory.py --save benchmarks/results/laboratory.md

bench-large: $(READY)
	$(BIN)/python benchmarks/large.py --save benchmarks/results/large.md

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
