# FedSDG Bench. From nothing but Python >= 3.11, git and make. PYTHON=python3.12 chooses the
# interpreter, CORES=4 the number of cores (default: all), CONFIG=smoke one experiment alone.
PYTHON ?= python3
CORES ?= all
# Seeds of each experiment, from its first on. PRETRAIN=1 makes backbones anew.
SEEDS ?= 2
# Test processes side by side; TESTS chooses some.
JOBS ?= 2
TESTS ?= tests
# What the page shows: the record, or results/summary.
RECORDS ?= results/reference
# The commit to compare with.
BASE ?= main

BIN := $(abspath .venv)/bin
INSTALLED := .venv/.installed
PERFORMANCE := results/performance/full
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
# glibc keeps its memory: without it, times of large tensors vary by a factor of two.
KEPT = MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
export PATH := $(BIN):$(PATH)
export FEDSDG_PRETRAIN := $(PRETRAIN)
.PHONY: help environment smoke reproduce page test lint verify bench bench-compare record docs package gpu slurm-demo lock

help: ## this list
	@sed -n '1,/^PYTHON/s/^# \{0,1\}//p' Makefile
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s%s\n", $$1, $$2 }' Makefile

environment: $(INSTALLED) ## install everything into .venv

smoke: $(INSTALLED) ## every stage of a small experiment, in about a minute
	@fedsdg reproduce --cores $(CORES) --config smoke

reproduce: $(INSTALLED) ## README's rows anew, beside the record (SEEDS=5; all rows of an arena: CONFIG=needs)
	$(if $(CONFIG),$(if $(filter file,$(origin SEEDS)),,$(error SEEDS is for README's rows; with CONFIG set them in the config or leave SEEDS out)))
	fedsdg reproduce --cores $(CORES) $(if $(CONFIG),--config $(CONFIG),-- --config seeds=$(SEEDS))

page: $(INSTALLED) ## the results page of the record, to be opened in a browser
	@printf 'Open in a browser: ' && fedsdg render page --records $(RECORDS)

test: $(INSTALLED) ## lint, verify and all tests, or TESTS=tests/config
	@test $(TESTS) != tests || $(MAKE) --no-print-directory lint verify
	$(PYTEST) --durations 10 $(TESTS)

lint: $(INSTALLED) ## style, types, imports, workflow
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	snakefmt --check workflow
	snakemake --lint

verify: $(INSTALLED) ## every committed table, verdict and number again, from the records
	fedsdg verify

bench: $(INSTALLED) .venv/.rivals ## how fast rules, rounds and files are here, against other code: under ten minutes
	@rm -f $(PERFORMANCE)/measured.json
	@status=0; $(KEPT) pytest benchmarks -rs --measured $(PERFORMANCE)/measured.json || status=$$?; \
	fedsdg render speed --measured $(PERFORMANCE)/measured.json --output $(PERFORMANCE) && exit $$status

bench-compare: $(INSTALLED) ## whether rules and runs are slower than at BASE (QUICK=1: in small)
	$(KEPT) python -m benchmarks.compare $(BASE) $(if $(QUICK),--quick) --measured $(PERFORMANCE)/commits.json

record: $(INSTALLED) ## what config/record.yaml publishes: search, runs, tables, figures, claims (MINUTES=50)
	@status=0; fedsdg record $(if $(filter-out all,$(CORES)),--jobs $(CORES)) $(if $(MINUTES),--minutes $(MINUTES)) || status=$$?; \
	snakemake figures tables --cores $(CORES) && fedsdg render claims documents && exit $$status

docs: $(INSTALLED) ## the pages that are made from the code, and the documentation in site/
	python -m fedsdg.config.reference
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

package: ## the sdist and the wheel in dist/; needs build and twine alone
	rm -rf dist
	$(if $(wildcard $(INSTALLED)),$(BIN)/python,$(PYTHON)) -m build --outdir dist .
	$(if $(wildcard $(INSTALLED)),$(BIN)/python,$(PYTHON)) -m twine check --strict dist/*

gpu: ## check a machine with a GPU, into OUT=folder (DATA=folder with cifar100): docs/running.md
	@test -n "$(OUT)" || { echo "error: say where the outputs go: make gpu OUT=folder" >&2; exit 1; }
	@PYTHONPATH=$(CURDIR):$(PYTHONPATH) $(if $(DATA),FEDSDG_DATA=$(abspath $(DATA))) $(PYTHON) -m benchmarks.on_gpu --out $(OUT)

slurm-demo: $(INSTALLED) ## profiles/slurm through a real SLURM on this machine, as root on Debian or Ubuntu
	python profiles/slurm/demo.py

# Needs uv. Pins everything for all platforms at once; see the head of requirements.lock.
lock: ## pin the newest versions in requirements.lock
	@command -v uv > /dev/null || { echo "error: make lock needs uv (pip install uv)" >&2; exit 1; }
	@sed -n '/^[^#]/q;p' requirements.lock > requirements.lock.new
	uv pip compile pyproject.toml --quiet --extra dev --universal --python-version 3.11 \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  | grep -Ev '^(nvidia-|cuda-|colorama|pywin32|pyreadline3|httpx2-jsfetch)' >> requirements.lock.new
	mv requirements.lock.new requirements.lock

# The codes that are compared with; without them their columns say so.
.venv/.rivals: benchmarks/requirements.txt $(INSTALLED)
	@python -m pip install --quiet --no-deps --requirement $< && touch $@ || \
	  echo "Flower and byzfl could not be installed: their columns stay empty." >&2

# The stamp is written last: an installation that broke off is made again.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is not Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Installing the locked environment into .venv; the first time this downloads PyTorch and takes some minutes."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'from fedsdg.experiment.export import require_torchvision; require_torchvision()'
	@touch $@
