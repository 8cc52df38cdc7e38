# make setup | demo | test | lint | bench | soak | pictures | transcripts | clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
TORCH  := torch==2.13.0

.PHONY: setup demo test lint bench soak pictures transcripts clean

setup: $(STAMP)

# torch first: every other package then resolves beside it instead of pulling in a build of its own.
$(STAMP): setup.cfg setup.py pyproject.toml requirements-ci.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ftlib needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || { echo "setup: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "setup: installing $(TORCH)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	@echo "setup: installing requirements-ci.txt"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-ci.txt
	@echo "setup: installing ftlib itself (editable)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@
	@echo "setup: done"

demo: setup
	$(BIN)/ftlib demo

# Tests wait for time-outs and for each other: three at once keep two cores busy, and four of those that start processes, which
# come apart from those that compute.
test: setup
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not process and not soak"
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "process and not soak"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks

soak: setup
	$(BIN)/python -m pytest -m soak

# The state diagrams are drawn from the tables in the code; imgs/demo.png is the report of a run of make demo.
PICTURES := architecture training flow life detection change
pictures: setup
	for name in $(PICTURES); do $(BIN)/python imgs/$$name.py || exit 1; done

# What is told in tests/transcripts/golden, as it happens now. The diff is to be read before it is committed.
transcripts: setup
	REWRITE_TRANSCRIPTS=1 $(BIN)/python -m pytest -q tests/transcripts/test_golden.py

clean:
	rm -rf build dist out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
