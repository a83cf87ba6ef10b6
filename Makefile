PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# What is run under torch's other default dtype as well; the whole of tests/ can be.
OTHER_DEFAULT := tests/test_kernels.py tests/test_models.py tests/test_acquisition.py tests/regression tests/strategies
PAPER := MT-KB MT-KB-mixture MT-BKB MT-BKB-mixture IT-KB IT-BKB MOBO random Sobol MT-KB-ellipsoid MT-BKB-ellipsoid

.PHONY: demo test test-all docs figures tables package test-versions notebooks clean
.PHONY: bench bench-nystrom bench-batching bench-learning bench-botorch bench-rounds bench-guarantees bench-laboratory bench-optuna bench-ax bench-paper bench-comparing bench-large bench-large-learning bench-cluster

demo: $(READY)
	$(BIN)/mtbo-torch demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal

# What `make test` leaves out: the documentation, the slow tests (one builds wheel and sdist and runs the demo from the
# wheel), and some again under torch's other default dtype.
test-all: $(READY) docs
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal -m "slow and not cuda"
	MTBO_TEST_DTYPE=float64 OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal $(OTHER_DEFAULT)

# The site is in docs/_build/html; a warning is an error.
docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -n -q -b html docs docs/_build/html

figures: $(READY)
	$(BIN)/python docs/draw_transfer.py

# Copies the benchmarks' tables into the README, and says which are older than the code they speak of.
tables: $(READY)
	$(BIN)/python benchmarks/record.py

# Builds wheel and sdist, installs the wheel with all that it requires into an empty environment, and runs the demo from
# it. make test-all does the same with what it requires taken from .venv, which is quicker.
package: $(READY)
	rm -rf dist build/empty
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/python -m venv build/empty
	build/empty/bin/pip install --quiet --constraint constraints.txt "$$(ls dist/*.whl)[plot]"
	cd build && empty/bin/mtbo-torch --version --environment && empty/bin/mtbo-torch demo --out demo.png

# Tests with the oldest and the newest versions that pyproject.toml allows, recorded in a table (gigabytes of torch, one
# build after the other); or with some that you name, not recorded: make test-versions VERSIONS="python3.12 botorch==0.18.0"
test-versions: $(READY)
	$(BIN)/python benchmarks/versions.py $(VERSIONS)

notebooks: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/execute.py

bench: $(READY)
	$(BIN)/python benchmarks/exact.py

bench-nystrom: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/nystrom.py

bench-large: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/large.py $(OPTIONS)

bench-cluster: $(READY)
	$(BIN)/python benchmarks/cluster.py

bench-batching: $(READY)
	$(BIN)/python benchmarks/batching.py

bench-learning: $(READY)
	$(BIN)/python benchmarks/learning.py

bench-large-learning: $(READY)
	$(BIN)/python benchmarks/large_learning.py

bench-botorch: $(READY)
	$(BIN)/python benchmarks/botorch_problems.py $(OPTIONS)

bench-rounds: $(READY)
	$(BIN)/python benchmarks/round_times.py $(OPTIONS)

bench-guarantees: $(READY)
	$(BIN)/python benchmarks/guarantees.py $(OPTIONS)

bench-laboratory: $(READY)
	$(BIN)/python benchmarks/laboratory.py $(OPTIONS)

# With DATA="--sensor-data ... --soil-data ...", all panels.
bench-paper: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/mtbo-torch reproduce all $(DATA) --algorithms $(PAPER)
	$(BIN)/python benchmarks/paper.py

bench-comparing: $(READY)
	$(BIN)/python benchmarks/comparing.py $(DATA)

bench-ax: $(READY)
	$(BIN)/python benchmarks/ax_limits.py

bench-optuna: $(READY)
	$(BIN)/python benchmarks/optuna_samplers.py $(OPTIONS)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test,docs]"
	touch $(READY)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache docs/_build build dist
