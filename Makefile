# make setup | demo | test | gpu | gpu-wheels | fuzz | lint | bench | soak | docs | dist | matrix | pictures | tables | transcripts | clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
TORCH  := torch==2.13.0

.PHONY: setup demo test gpu gpu-wheels fuzz lint bench soak docs dist matrix pictures tables transcripts clean

setup: $(STAMP)

# torch first: every other package then resolves beside it instead of pulling in a build of its own. pip says what it downloads
# and how large that is: with a bar on a terminal, a line a file elsewhere.
PIP := $(BIN)/python -m pip install --disable-pip-version-check
$(STAMP): SHELL := bash
$(STAMP): .SHELLFLAGS := -o pipefail -c
$(STAMP): setup.cfg setup.py pyproject.toml requirements-ci.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ftlib needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || { echo "setup: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@install() { if test -t 1; then $(PIP) "$$@"; else $(PIP) --progress-bar off "$$@" | { grep -E --line-buffered '^ *(Downloading|Using cached|Installing|Successfully)|^ERROR' || test $$? -eq 1; } | cut -c1-160; fi; }; \
	echo "setup: 1 of 3, $(TORCH) and what it needs: minutes, and much the largest part of all"; \
	install $(TORCH) && \
	echo "setup: 2 of 3, the other packages (requirements-ci.txt): about a minute" && \
	install -r requirements-ci.txt
	@echo "setup: 3 of 3, ftlib itself (editable)"
	@$(PIP) --quiet --no-build-isolation --no-deps -e .
	@touch $@
	@echo "setup: done"

demo: setup
	$(BIN)/ftlib demo

# All but the longest, in parts that are all reported; PART=processes runs that one alone. MINUTES=15 begins no test later.
test: setup
	@$(BIN)/python -m tests $(PART) $(if $(MINUTES),--minutes $(MINUTES))

# Tests and benchmarks of one GPU, in under nine minutes; one line where there is none. With the Python and the torch of the
# machine, since it may be a bare one; what these lack comes from the folder GPU_WHEELS, filled by make gpu-wheels elsewhere.
GPU_WHEELS ?= .gpu-wheels
gpu:
	@GPU_WHEELS=$(GPU_WHEELS) $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu

# For Python 3.12 on x86-64, by default; pip takes the name of a platform literally, hence several.
GPU_VERSION ?= 312
PLATFORMS   := 2_28 2_27 2_24 2_17 2_34
gpu-wheels: setup
	@$(PIP:install=download) --quiet --only-binary=:all: --no-deps --python-version $(GPU_VERSION) --implementation cp \
	  $(PLATFORMS:%=--platform manylinux_%_x86_64) --platform manylinux2014_x86_64 --dest $(GPU_WHEELS) -c requirements-ci.txt \
	  cryptography cffi pycparser python-json-logger greenlet
	@du -sh $(GPU_WHEELS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python -m benchmarks

# Every property test, with examples of its own in each round. CI and make test try the same ones each time.
ROUNDS ?= 20
SEED   ?= $(shell date +%s)
fuzz: setup
	@for seed in $$(seq $(SEED) $$(($(SEED) + $(ROUNDS) - 1))); do \
	  echo "make fuzz ROUNDS=1 SEED=$$seed"; \
	  $(BIN)/python -m pytest -q -p tests.forks --forks=3 -m "hypothesis and not soak" --hypothesis-profile=fuzz --hypothesis-seed=$$seed \
	    || { echo "to repeat: make fuzz ROUNDS=1 SEED=$$seed"; exit 1; }; \
	done

soak: setup
	$(BIN)/python -m pytest -m soak

# The pages of docs/ and the reference as a site, in out/docs/index.html. A warning is an error.
docs: setup
	@$(BIN)/sphinx-build -q -W --keep-going -c docs/site -d out/doctrees . out/docs && echo "docs: out/docs/index.html"

# What users install: sdist and wheel in dist/, checked, each installed into an empty environment and used there.
dist: setup
	$(BIN)/python -m tests.installed.dist

# The lowest and the newest versions of what it needs, and other Pythons. ROW=lowest runs one.
matrix: setup
	$(BIN)/python -m tests.installed.matrix $(ROW)

# The house is drawn from the imports of the code, the state diagrams from its tables; imgs/demo.png is the report of a make demo.
PICTURES := house architecture training flow life detection change
pictures: setup
	for name in $(PICTURES); do $(BIN)/python imgs/$$name.py || exit 1; done

# The tables of settings, metrics and commands in docs/, from those in the code.
tables: setup
	$(BIN)/python docs/tables.py

# What is told in tests/transcripts/golden, as it happens now. The diff is to be read before it is committed.
transcripts: setup
	REWRITE_TRANSCRIPTS=1 $(BIN)/python -m pytest -q tests/transcripts/test_golden.py

clean:
	rm -rf build dist out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
