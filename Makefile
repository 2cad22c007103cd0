# FedSDG Bench. From nothing but Python >= 3.11, git and make.
# PYTHON=python3.12 chooses the interpreter, CORES=4 the number of cores (default: all),
# CONFIG=config/smoke.yaml another experiment.

PYTHON ?= python3
VENV   ?= .venv
CORES  ?= all
CONFIG ?=
# Test processes side by side.
JOBS   ?= 2

BIN       := $(abspath $(VENV))/bin
INSTALLED := $(VENV)/.installed
SNAKEMAKE  = $(BIN)/snakemake --cores $(CORES) $(if $(CONFIG),--configfile $(CONFIG))

# Jobs of the pipeline find `fedsdg` here, as in an activated shell.
export PATH := $(BIN):$(PATH)

.PHONY: help reproduce report page everything study search record cifar100 cifar100-plan cifar100-pilot extended smoke test pytest test-fast lint verify package bench bench-compare bench-regression bench-runs gate same-tables planted gpu slurm-demo lock documents docs environment clean distclean

# The head of this file, and each target with the text after its `##`.
help: ## this list
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s%s\n", $$1, $$2 }' Makefile

smoke: $(INSTALLED) ## every stage of a small experiment, in about a minute
	$(BIN)/snakemake --cores $(CORES) --configfile config/smoke.yaml
	@echo "smoke: tables in results/tables/smoke/, figures in results/figures/smoke/, claims in results/claims/smoke.md"

SMALL = every-method every-condition
# The arenas beside that of config/config.yaml, label-skew.
ARENAS = needs views
# How many seeds of each arena; the record has ten of needs.
SEEDS ?= 5
# Laid over the others as a file: on Snakemake's command line numbers in lists are text.
SEED_FILE = .fedsdg/seeds~$(SEEDS).yaml
$(SEED_FILE):
	@mkdir -p $(@D)
	@echo "seeds: [$$(seq -s ', ' 0 $$(($(SEEDS) - 1)))]" > $@

# PRETRAIN=1 pretrains backbones anew; otherwise those of the record are taken.
PRETRAIN ?=
export FEDSDG_PRETRAIN := $(PRETRAIN)

# Where commands note the processor time that they took.
SPENT = $(abspath .fedsdg/spent.txt)
reproduce: export FEDSDG_SPENT := $(SPENT)
SAY_SPENT = $(BIN)/fedsdg spent $(SPENT) --installed $(INSTALLED)

# Three arenas, then every other method and every kind of condition once and in small, the reports, a line
# for each primary comparison: here, and in the record; and the page. CONFIG=… makes one experiment alone.
WHERE = tables in results/tables/, figures in results/figures/, claims in results/claims/
ifdef CONFIG
reproduce: $(INSTALLED) ## every table and figure of the three arenas, five seeds (SEEDS=2 is quicker)
	@mkdir -p $(dir $(SPENT)) && : > $(SPENT)
	$(SNAKEMAKE) -- all performance
	$(SNAKEMAKE) --report results/report.html -- all performance
	@$(SAY_SPENT)
	@echo "$(CONFIG): $(WHERE), report in results/report.html"
else
reproduce: $(INSTALLED) $(SEED_FILE)
	@mkdir -p $(dir $(SPENT)) && : > $(SPENT)
	$(SNAKEMAKE) --configfile $(SEED_FILE) -- all performance
	set -e; for name in $(ARENAS); do $(SNAKEMAKE) --configfile config/$$name.yaml $(SEED_FILE) -- all; done
	set -e; for name in $(SMALL); do $(SNAKEMAKE) --configfile config/$$name.yaml; done
	$(SNAKEMAKE) --configfile $(SEED_FILE) --report results/report.html -- all performance
	set -e; for name in $(ARENAS); do \
	  $(SNAKEMAKE) --configfile config/$$name.yaml $(SEED_FILE) --report results/report-$$name.html -- all; \
	done
	$(BIN)/fedsdg agree needs
	@echo "All arenas: $(WHERE), reports in results/report*.html"
	@$(MAKE) --no-print-directory page RECORDS=results/summary
	@$(SAY_SPENT)
endif

# What there is to see, in one file for a browser: of the record, or of what was computed here.
RECORDS ?= results/reference
page: $(INSTALLED) ## the results page of the record, to be opened in a browser
	@printf 'Open in a browser: ' && $(BIN)/fedsdg page --records $(RECORDS)

report: $(INSTALLED) ## the workflow's report of CONFIG, with the lineage of every page
	$(SNAKEMAKE) --report results/report.html

# Runs side by side in what follows; all of it goes on where it was broken off.
GRID_JOBS ?= 2
GRID = $(BIN)/fedsdg run --grid

# Every published table and figure from nothing, in results/: all grids whose records lie in results/reference/
# (the arenas with all their seeds, controls, the specification's values, the ablation, the extended experiments, CIFAR-100
# and its pilot), every method and condition in small, what claims.yaml asks for besides, and the speed. Many hours,
# never timed as a whole; goes on where it was broken off. `make record EXPERIMENTS=…` puts a grid into the record.
# Before them the tests that take an hour: all generated inputs through files and over ranks, a hundred kills,
# and the analysis of 5,000 runs.
EVERYTHING = config $(ARENAS) needs-controls verification ablation $(SMALL) studies/restarting
CLAIMS ?= $(basename $(notdir $(wildcard config/claims/*.yaml)))
everything: $(INSTALLED) ## every published table and figure from nothing: many hours
	FEDSDG_TESTS=everything $(PYTEST) tests/bad_inputs/test_bad_inputs.py tests/experiment/test_resuming.py \
	  tests/aggregation/engines/test_distributed.py tests/analysis/test_many_runs.py \
	  -k "test_files or generated or kills or many_runs"
	set -e; for name in $(EVERYTHING) $(addprefix claims/,$(CLAIMS)); do \
	  $(GRID) config/$$name.yaml --jobs $(GRID_JOBS); \
	done
	$(MAKE) extended cifar100 cifar100-plan cifar100-pilot bench

# Its parts, one after another: benchmarks/study.py. STUDY_MINUTES=30 starts no run later than that.
study: $(INSTALLED) ## the next part of the study; its last line says what to commit
	nice $(BIN)/python -m benchmarks.study --jobs $(GRID_JOBS) $(if $(STUDY_MINUTES),--minutes $(STUDY_MINUTES))

# The values that the arenas' configs hold were found so.
search: $(INSTALLED) ## the search for the arenas' hyper-parameters again
	$(BIN)/fedsdg search --jobs $(GRID_JOBS)
	set -e; for name in $(ARENAS); do \
	  $(BIN)/fedsdg search --config config/config.yaml config/$$name.yaml --jobs $(GRID_JOBS); \
	done

# What these experiments, as they were computed here, leave in the repository.
EXPERIMENTS ?= label-skew needs views
record: $(INSTALLED) ## put computed EXPERIMENTS into the record, and draw its figures
	$(BIN)/fedsdg record $(EXPERIMENTS)
	$(BIN)/snakemake figures tables --cores $(CORES)

# CIFAR-100 among 50 clients, seed by seed: FEDSDG_DATA names a folder with its images, or the hub is asked.
CIFAR100 = $(GRID) config/paper.yaml config/cifar100.yaml
cifar100: $(INSTALLED) ## CIFAR-100 among 50 clients, as it was recorded: hours
	$(CIFAR100) --jobs $(GRID_JOBS)

# The grid to be recorded next, at α = 0.1 and with conflicting labels.
PLAN = $(CIFAR100) config/cifar100-plan.yaml
cifar100-plan: $(INSTALLED) ## CIFAR-100 among 50 clients, as it is planned: hours
	$(PLAN) --jobs $(GRID_JOBS)
	$(PLAN) config/cifar100-needs.yaml --jobs $(GRID_JOBS)

# The pilot of it, in part; BACKBONE=tiny-imagenet-file where its weights are at hand.
PILOT = $(GRID) config/paper.yaml config/cifar100-pilot.yaml --jobs $(GRID_JOBS) \
  $(if $(BACKBONE),--set backbone=$(BACKBONE))
cifar100-pilot: $(INSTALLED) ## a pilot of it among 100 clients, in part
	$(PILOT) --only fedsdg fedavg local-only
	$(PILOT) --only dirichlet~0.1 seed~0

# Every experiment of config/extended/, each callable alone, and what they leave in the repository.
EXTENDED ?= $(basename $(notdir $(wildcard config/extended/*.yaml)))
extended: $(INSTALLED) ## the ten extended experiments: hours
	set -e; for name in $(EXTENDED); do \
	  $(GRID) config/config.yaml config/extended/$$name.yaml --jobs $(GRID_JOBS); \
	done

test: $(INSTALLED) ## every check and test
	@set -e; for part in lint verify pytest; do \
	  begun=$$(date +%s); $(MAKE) --no-print-directory $$part; \
	  echo "$$part took $$((($$(date +%s) - begun) / 60)) minutes and $$((($$(date +%s) - begun) % 60)) seconds"; \
	done

pytest: $(INSTALLED) ## the tests alone
	$(PYTEST)

test-fast: $(INSTALLED) ## the tests that take under three seconds each
	$(PYTEST) -m "not slow"

# One thread per test process: tests run side by side, a file at a time in the order of tests/conftest.py.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder \
  --durations 10

lint: $(INSTALLED) ## style, types, imports, workflow
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

# What is committed is what the records give, and some of its runs come out again: docs/pipeline.md.
verify: $(INSTALLED) ## every committed table, verdict and number again, from the records
	$(BIN)/fedsdg verify

# The sdist and the wheel of this version in dist/, as an index would take them. Needs $(PYTHON) with build and twine alone,
# or the environment.
PACKAGING = $(if $(wildcard $(INSTALLED)),$(BIN)/python,$(PYTHON))
package: ## the sdist and the wheel in dist/
	rm -rf dist
	$(PACKAGING) -m build --outdir dist .
	$(PACKAGING) -m twine check --strict dist/*

# Tables, figure and judgement of training and aggregation; see docs/benchmarks.md. It fails where
# ours is not as fast as it has to be (benchmarks/bench_bars.py).
# The allocator of glibc is told to keep its memory: without it, times of large tensors vary by a factor of two.
KEPT = MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456
PERFORMANCE = results/performance/full
MEASURED = $(PERFORMANCE)/measured.json
bench: $(INSTALLED) $(VENV)/.rivals ## how fast training and aggregation are here, and whether that is fast enough
	@rm -f $(MEASURED)
	@status=0; $(KEPT) $(BIN)/pytest benchmarks -rs --measured $(MEASURED) || status=$$?; \
	$(BIN)/fedsdg kernels --measured $(MEASURED) \
	  --table $(PERFORMANCE)/kernels --figure $(PERFORMANCE)/roofline && \
	$(BIN)/fedsdg throughput --measured $(MEASURED) --table $(PERFORMANCE)/throughput && exit $$status

# Fails where a rule got slower by a quarter than at another commit, measured side by side.
BASE ?= main
bench-compare: $(INSTALLED) ## whether an aggregation rule is slower than at BASE (default: main)
	$(BIN)/python -m benchmarks.compare $(BASE)

# Fails where a round or a rule takes half as long again as at another commit: in turns, a minute or two.
bench-regression: $(INSTALLED) ## whether a round or a rule takes half as long again as at BASE
	$(KEPT) $(BIN)/python -m benchmarks.regression $(BASE)

# Fails where whole runs are not so many times as fast as at BASE as benchmarks/runs.py asks: nine runs, in turns, half an
# hour by the processor's time. PAIRS=2 LENGTH=5 is a trial; OVER="partition.test=by-seed" is laid over this side alone.
PAIRS  ?= 7
LENGTH ?= 60
bench-runs: $(INSTALLED) ## how many times as fast as at BASE whole runs are
	$(KEPT) $(BIN)/python -m benchmarks.runs $(BASE) --pairs $(PAIRS) --rounds $(LENGTH) --out $(PERFORMANCE)/runs \
	  $(if $(OVER),--over $(OVER))

# Fails where a run of any method, condition or attack is not bit for bit what it is at another commit.
gate: $(INSTALLED) ## whether every kind of run is bit for bit what it is at BASE
	$(BIN)/python -m benchmarks.same_bytes $(BASE) $(if $(FEW),--few)

# What `make verify` shows to be made of the records; no run is done.
same-tables: $(INSTALLED) ## whether every committed table is, cell by cell, what it is at BASE
	$(BIN)/python -m benchmarks.same_tables $(BASE)

# PART=2/4: every fourth one, beginning with the second.
planted: $(INSTALLED) ## plant known faults in a copy, one by one (ROOM=models, PART=1/4): do the tests find them?
	$(BIN)/python -m benchmarks.planted $(if $(ROOM),--room $(ROOM)) $(if $(PART),--part $(PART))

# Whatever a GPU has time for, in the order of worth, and on from there when called again: docs/gpu.md.
# Nothing is installed: $(PYTHON) is to have PyTorch and what that page lists.
MINUTES ?= 25
gpu: ## what a GPU has time for in MINUTES, into OUT=folder: docs/gpu.md
	@test -n "$(OUT)" || { echo "error: say where the outputs go: make gpu OUT=folder" >&2; exit 1; }
	@PYTHONPATH=$(CURDIR) $(PYTHON) -m benchmarks.on_gpu --minutes $(MINUTES) --out $(OUT) \
	  $(if $(WORK),--work $(WORK)) $(if $(EARLIER),--earlier $(EARLIER)) $(if $(DATA),--data $(DATA)) \
	  $(if $(BACKBONES),--backbones $(BACKBONES)) $(if $(ONLY),--only $(ONLY)) $(if $(filter small,$(FORM)),--small)

# Two nodes on this machine, a cell that is cancelled and goes on, and the records of a local run: docs/cluster.md.
slurm-demo: $(INSTALLED) ## profiles/slurm through a real SLURM on this machine, as root on Debian or Ubuntu
	$(BIN)/python profiles/slurm/demo.py

# The codes that are compared with; without them their columns say so.
$(VENV)/.rivals: benchmarks/requirements.txt $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --no-deps --requirement $< && touch $@ || \
	  echo "Flower and byzfl could not be installed: their columns stay empty." >&2

# What is said of the parts in other places, from the parts: fedsdg/declarations.json, the config's schema,
# docs/methods.md and docs/config.md. A test says when it is due.
documents: $(INSTALLED) ## the pages and files that are made from the code
	$(BIN)/fedsdg documents

# The documentation as pages in site/, which open from disk; a link that leads nowhere is an error.
docs: $(INSTALLED) ## the documentation as pages in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

environment: $(INSTALLED) ## install everything into .venv

# The stamp is written last: an installation that broke off is made again. It says the time that the
# processor took.
$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(PYTHON) > /dev/null || \
	  { echo "error: there is no $(PYTHON); install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  "error: $(PYTHON) is Python %d.%d, but 3.11 or newer is needed; name one: make PYTHON=python3.12" % v[:2])'
	@echo "Installing the locked environment into $(VENV); the first time this downloads PyTorch and takes some minutes."
	set -e; $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install --quiet --requirement requirements.lock; \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	  times > $@

# Needs uv. Pins everything anew, for all platforms at once; see the head of requirements.lock.
lock: ## pin the newest versions in requirements.lock
	@command -v uv > /dev/null || { echo "error: make lock needs uv (pip install uv)" >&2; exit 1; }
	@sed -n '/^[^#]/q;p' requirements.lock > requirements.lock.new
	uv pip compile pyproject.toml --quiet --extra dev --universal --python-version 3.11 \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  | grep -Ev '^(nvidia-|cuda-|colorama|pywin32|pyreadline3|httpx2-jsfetch)' >> requirements.lock.new
	mv requirements.lock.new requirements.lock

# What the pipeline made, but neither the environment nor the store of finished runs (.fedsdg).
clean: ## remove what the pipeline made, but not the environment or finished runs
	git clean -fdXq -- results paper_figures .snakemake .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .import_linter_cache .grimp_cache .benchmarks docs/results

distclean: clean ## remove those too
	rm -rf $(VENV) .fedsdg docs/.fedsdg resources *.egg-info build
