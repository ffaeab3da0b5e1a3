# make demo   an example project of real text, built            make test   the tests, except for the slow ones
# make dev    the Dagster UI on the demo                         make lint   ruff, mypy, and who may import whom
# make test-all  the whole suite: also tests that kill builds, or start a cluster or a database; takes half an hour
#             (make test and test-all start WORKERS processes: three keep two processors busy, since tests wait for servers)
# make coverage  the whole suite, with a table of the lines and branches that it runs
# make lowest    the whole suite with the oldest supported versions of all dependencies
# make readers   environments of their own with the real readers (.ci/readers), and the tests that need these in each
# make clouds    an environment of its own with emulators of Google Storage and Azure, and the tests that need these in it
# make demo-s3   the demo with its outputs in a bucket, played by a server on this machine, beside the local demo
# make cluster-demo  the demo over a bucket and a cluster (Slurm where it is installed), both played by this machine
# make tour   screenshots of that UI for docs/dagster.md; needs Chromium
# make size   how dense the code of each folder is, as a table
# make docs   docs/ as a site in build/docs
# make campaigns  hundreds of thousands of trials with damaged files and disturbed builds; one to two hours (campaigns/README.md)

PYTHON ?= python3
VENV ?= .venv
LOWEST ?= .venv-lowest
READERS ?= .venv-readers
CLOUDS ?= .venv-clouds
CONSTRAINTS ?= constraints.txt
DEMO ?= demo
PORT ?= 3000
TRIALS ?= 3000
KILLS ?= 200
DAMAGES ?= 200
MUTATIONS ?= 2000
STRINGS ?= 20000
WORKERS ?= 3
BIN := $(VENV)/bin
CLOUD_TESTS := tests/campaigns/test_interruptions.py tests/campaigns/test_turns.py $(addprefix tests/storage/, in_bucket/test_clouds.py in_bucket/test_two_builds.py in_bucket/test_workers.py stores/test_cloud_faults.py stores/test_cloud_stores.py test_listing.py)

.PHONY: demo demo-s3 cluster-demo dev tour test test-all coverage lowest readers clouds campaigns faults lint types size docs install clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; found $$($(PYTHON) --version). Name one: make PYTHON=python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): one to three minutes"
	$(BIN)/python -m pip install --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

demo: install
	$(BIN)/nanoset demo $(DEMO)

demo-s3: install
	$(BIN)/python -m benchmarks.s3 --folder $(DEMO)-s3

cluster-demo: install
	PYTHONPATH=tests $(BIN)/python -m live.cluster_demo $(DEMO)-cluster

dev: demo
	DAGSTER_HOME=$(abspath $(DEMO))/.dagster NANOSET_CONFIG=$(abspath $(DEMO))/nanoset.yaml $(BIN)/dagster dev --workspace workspace.yaml --port $(PORT)

tour: demo
	PYTHONPATH=tests $(BIN)/python -m live.tour --demo $(DEMO)

test: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" --ignore tests/live
	$(BIN)/python -m pytest -m "not slow" tests/live

test-all: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --ignore tests/live
	$(BIN)/python -m pytest tests/live

campaigns: install
	PYTHONPATH=tests $(BIN)/python -m campaigns formats --trials $(TRIALS)
	PYTHONPATH=tests $(BIN)/python -m campaigns hostile
	PYTHONPATH=tests $(BIN)/python -m campaigns tokenizers --trials $(MUTATIONS) --strings $(STRINGS)
	PYTHONPATH=tests $(BIN)/python -m campaigns damage --trials $(DAMAGES)
	PYTHONPATH=tests $(BIN)/python -m campaigns commands
	PYTHONPATH=tests $(BIN)/python -m campaigns interruptions --trials $(KILLS)
	PYTHONPATH=tests $(BIN)/python -m campaigns interruptions --trials $(KILLS) --storage google
	PYTHONPATH=tests $(BIN)/python -m campaigns interruptions --trials $(KILLS) --storage azure
	PYTHONPATH=tests $(BIN)/python -m campaigns turns

# The former name of `make campaigns`.
faults: campaigns

coverage: install
	rm -f .coverage .coverage.*
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --ignore tests/live --cov --cov-report=
	$(BIN)/python -m coverage report --sort=cover

lowest:
	$(MAKE) install VENV=$(LOWEST) CONSTRAINTS=.ci/lowest.txt
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile --ignore tests/live --ignore tests/docs

readers: $(patsubst .ci/readers/%.txt,$(READERS)/%/.tested,$(wildcard .ci/readers/*.txt))

$(READERS)/%/.tested: .ci/readers/%.txt
	$(PYTHON) -m venv $(READERS)/$*
	$(READERS)/$*/bin/python -m pip install --disable-pip-version-check --editable . -r $< pytest hypothesis
	$(READERS)/$*/bin/python -m pytest -q -W default tests/stages/exports tests/docs/test_readers.py tests/stages/packs/test_readers.py tests/stages/views/test_readers.py tests/loading/test_megatron_core.py tests/loading/test_nemo.py tests/sampling/test_nanotron_main.py tests/lineage/test_run_trainers.py

# Azurite, the emulator of Azure, is a package of npm. Without npm, the tests that need it are skipped.
clouds:
	$(MAKE) install VENV=$(CLOUDS)
	$(CLOUDS)/bin/python -m pip install --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[gcs,azure]' -r .ci/clouds.txt
	if command -v npm; then npm install --no-audit --no-fund --prefix $(CLOUDS)/azurite azurite@3.37.0; fi
	PATH="$(abspath $(CLOUDS))/azurite/node_modules/.bin:$$PATH" $(CLOUDS)/bin/python -m pytest -n $(WORKERS) --dist loadfile -rs $(CLOUD_TESTS)

lint: install types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/test_layers.py

types: install
	$(BIN)/mypy

size:
	@$(PYTHON) .ci/density.py

docs: install
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .mkdocs.yml

clean:
	rm -rf $(VENV) $(LOWEST) $(READERS) $(CLOUDS) $(DEMO) build *.egg-info
