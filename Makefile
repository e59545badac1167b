# The habits of the house. `make demo` and `make test` need only Python 3.11 and a package index.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export RAY_USAGE_STATS_ENABLED := 0
export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER := 0
# A node is many processes: each would compile what it imports where this is set.
export PYTHONDONTWRITEBYTECODE :=

PARTS := cluster actors models
TESTS_cluster := tests/cluster --ignore=tests/cluster/ipc
# What the other two leave: with tests/cluster/ipc it takes about as long as the first.
TESTS_actors := --ignore-glob='tests/cluster/test_*.py' --ignore=tests/cluster/gateway \
	--ignore=tests/models --ignore=tests/fuzz
TESTS_models := tests/models tests/fuzz

.PHONY: setup demo test $(PARTS:%=test-%) $(PARTS:%=again-%) lint soak bench fuzz lock clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	$(BIN)/txcollection demo

# Three runs side by side: two drive real processes, whose beginnings and ends leave cores idle, and the third, which
# drives none, is all computing. Nothing is shared between them: every port is a free one, every directory its own.
# On a machine that is busy with something else a test may run out of its patience. What failed is therefore run once
# more, one part after the other, and must pass then.
test: setup
	$(MAKE) --no-print-directory -j3 $(PARTS:%=test-%) || { echo "once more what failed:"; \
		$(MAKE) --no-print-directory $(PARTS:%=again-%); }

$(PARTS:%=test-%): test-%: setup
	@rm -f .pytest_cache/$*/passed
	$(BIN)/python -m pytest $(TESTS_$*) -o cache_dir=.pytest_cache/$*
	@mkdir -p .pytest_cache/$* && touch .pytest_cache/$*/passed

$(PARTS:%=again-%): again-%: setup
	@test -e .pytest_cache/$*/passed || \
		$(BIN)/python -m pytest $(TESTS_$*) -o cache_dir=.pytest_cache/$* --last-failed --last-failed-no-failures none

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup
	$(BIN)/txcollection bench quick

# Everything at once for some minutes, or for hours: SOAK_MINUTES=120 SOAK_SEED=2.
SOAK_MINUTES ?= 2.5
SOAK_SEED ?= 1
soak: setup
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED)

# Every parser of outside bytes, guided by coverage, so many seconds each.
FUZZ_SECONDS ?= 30
fuzz: setup
	$(BIN)/python -m tests.fuzz.run all --seconds $(FUZZ_SECONDS)

# Pins every dependency with hashes and without any index address.
lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --extra dev --generate-hashes --no-emit-index-url --no-emit-find-links \
		--no-header --python-version 3.11 --output-file requirements.lock pyproject.toml requirements-build.in

clean:
	rm -rf $(VENV) build *.egg-info
