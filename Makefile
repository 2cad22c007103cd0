# FedSDG Bench. From nothing but Python >= 3.11, git and make. PYTHON=python3.12 chooses the interpreter,
# CORES=4 the number of cores (default: all), CONFIG=smoke another experiment than the three arenas,
# ALPHAS=all label skew at three levels besides.
PYTHON ?= python3
CORES ?= all
# Seeds of each arena, from the record's first on. PRETRAIN=1 makes backbones anew.
SEEDS ?= 3
# Test processes, and runs of a grid, side by side.
JOBS ?= 2
GRID_JOBS ?= 2
# What the page shows: the record, or results/summary. What is put into the record.
RECORDS ?= results/reference
EXPERIMENTS ?= $(ARENAS)
# The commit to compare with.
BASE ?= main

BIN := $(abspath .venv)/bin
INSTALLED := .venv/.installed
SPENT := $(abspath .fedsdg/spent.txt)
PERFORMANCE := results/performance/full
REPRODUCE = $(BIN)/fedsdg reproduce --cores $(CORES)
CHOSEN = $(if $(CONFIG),--config $(CONFIG))
# The record's first seed is 3.
OF_ARENA = --config $$name reproduced --set seeds=[$$(seq -s, 3 $$(($(SEEDS) + 2)))] -- all
GRID = $(BIN)/fedsdg run --jobs $(GRID_JOBS) --grid
CROSS = cross-needs cross-label-skew
ARENAS = $(CROSS) views
SMALL = every-method every-condition
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
# glibc keeps its memory: without it, times of large tensors vary by a factor of two.
KEPT = MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=268435456

# FedSDG minus its rivals in `needs`: what was computed here, beside the record.
define BESIDE
import pandas as pd
key = ["cell", "method", "rival", "metric", "at"]
here, record = (pd.read_csv(f"results/{place}/cross-needs/differences.csv") for place in ("tables", "reference"))
both = here[here["metric"] == "accuracy"].merge(record, on=key, suffixes=("", " (record)"))
shown = [f"{name}{side}" for side in ("", " (record)") for name in ("mean", "low", "high", "n")]
print(both[[*key, *shown]].round(1).to_string(index=False))
endef
export BESIDE

export PATH := $(BIN):$(PATH)
export FEDSDG_PRETRAIN := $(PRETRAIN)
reproduce: export FEDSDG_SPENT := $(SPENT)
.PHONY: help smoke reproduce page report everything search record cifar100 cifar100-plan cifar100-pilot extended test pytest test-fast lint verify package bench bench-compare gate planted gpu slurm-demo documents docs environment lock clean distclean

help: ## this list
	@sed -n '1,/^PYTHON/s/^# \{0,1\}//p' Makefile
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s%s\n", $$1, $$2 }' Makefile

smoke: $(INSTALLED) ## every stage of a small experiment, in about a minute
	@$(REPRODUCE) --config smoke

reproduce: $(INSTALLED) ## tables and figures of the three arenas (SEEDS=5, ALPHAS=all)
	@mkdir -p $(dir $(SPENT)) && : > $(SPENT)
ifdef CONFIG
	$(REPRODUCE) $(CHOSEN) -- all performance
	$(REPRODUCE) $(CHOSEN) -- all performance --report results/report.html
else
	set -e; for name in $(CROSS); do $(REPRODUCE) $(OF_ARENA); $(REPRODUCE) $(OF_ARENA) --report results/report-$$name.html; done
	set -e; for name in views $(SMALL) $(if $(ALPHAS),config); do $(REPRODUCE) --config $$name; done
	$(REPRODUCE) -- performance
	@$(BIN)/python -c "$$BESIDE"
	@FEDSDG_SPENT= $(MAKE) --no-print-directory page RECORDS=results/summary
endif
	@$(BIN)/python -m fedsdg.files.spent $(SPENT) $(INSTALLED)
	@echo "$(or $(CONFIG),All arenas): tables in results/tables/, figures in results/figures/, reports in results/report*.html"
page: $(INSTALLED) ## the results page of the record, to be opened in a browser
	@printf 'Open in a browser: ' && $(BIN)/fedsdg render page --records $(RECORDS)
report: $(INSTALLED) ## the workflow's report of CONFIG, with the lineage of every page
	$(REPRODUCE) $(CHOSEN) -- --report results/report.html

# All grids whose records are committed, what claims.yaml asks for besides, and the speed: many hours, never timed as a whole.
# First the tests that take an hour. What was broken off goes on when the target is called again.
everything: $(INSTALLED) ## every published table and figure from nothing: many hours
	FEDSDG_TESTS=everything $(PYTEST) tests/bad_inputs/test_bad_inputs.py tests/experiment/test_resuming.py \
	  -k "test_files or kills"
	set -e; for name in config $(ARENAS) needs-controls verification ablation $(SMALL) studies/restarting; do \
	  $(GRID) config/$$name.yaml; done
	set -e; for file in config/claims/*.yaml; do $(GRID) $$file; done
	$(MAKE) extended cifar100 cifar100-plan cifar100-pilot bench

search: $(INSTALLED) ## the search for the arenas' hyper-parameters again
	set -e; for name in config $(ARENAS); do $(BIN)/fedsdg search --jobs $(GRID_JOBS) --config $$name; done

record: $(INSTALLED) ## put computed EXPERIMENTS into the record, and draw its figures
	$(BIN)/fedsdg record $(EXPERIMENTS)
	$(BIN)/snakemake figures tables --cores $(CORES)
cifar100: $(INSTALLED) ## CIFAR-100 among 50 clients, as it was recorded: hours
	$(GRID) cifar100
cifar100-plan: $(INSTALLED) ## CIFAR-100 among 50 clients, as it is planned: hours
	$(GRID) cifar100-plan
	$(GRID) cifar100-needs
cifar100-pilot: $(INSTALLED) ## a pilot of it among 100 clients, in part (BACKBONE=tiny-imagenet-file)
	for part in "fedsdg fedavg local-only" "dirichlet~0.1 seed~0"; do \
	  $(GRID) cifar100-pilot $(if $(BACKBONE),--set backbone=$(BACKBONE)) --only $$part || exit; \
	done

extended: $(INSTALLED) ## the nine extended experiments: hours
	set -e; for file in config/extended/*.yaml; do $(GRID) $$file; done

test: $(INSTALLED) ## every check and test
	@set -e; for part in lint verify pytest; do begun=$$(date +%s); $(MAKE) --no-print-directory $$part; \
	  echo "$$part took $$((($$(date +%s) - begun) / 60)) minutes and $$((($$(date +%s) - begun) % 60)) seconds"; done
pytest: $(INSTALLED) ## the tests alone
	$(PYTEST) --durations 10
test-fast: $(INSTALLED) ## the tests that take under three seconds each
	$(PYTEST) -m "not slow"

lint: $(INSTALLED) ## style, types, imports, workflow
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint

verify: $(INSTALLED) ## every committed table, verdict and number again, from the records: docs/pipeline.md
	$(BIN)/fedsdg verify

package: ## the sdist and the wheel in dist/; needs build and twine alone
	rm -rf dist
	$(if $(wildcard $(INSTALLED)),$(BIN)/python,$(PYTHON)) -m build --outdir dist .
	$(if $(wildcard $(INSTALLED)),$(BIN)/python,$(PYTHON)) -m twine check --strict dist/*

bench: $(INSTALLED) .venv/.rivals ## how fast rules, rounds and files are here, against other code and the hardware: under ten minutes
	@rm -f $(PERFORMANCE)/measured.json
	@status=0; $(KEPT) $(BIN)/pytest benchmarks -rs --measured $(PERFORMANCE)/measured.json || status=$$?; \
	$(BIN)/fedsdg render speed --measured $(PERFORMANCE)/measured.json --output $(PERFORMANCE) && exit $$status
bench-compare: $(INSTALLED) ## whether rules and whole runs are slower than at BASE (QUICK=1: in small, as CI does)
	$(KEPT) $(BIN)/python -m benchmarks.compare $(BASE) $(if $(QUICK),--quick) --measured $(PERFORMANCE)/commits.json
gate: $(INSTALLED) ## whether every kind of run (FEW=1: fifteen) is bit for bit what it is at BASE
	$(BIN)/python -m tests.tools.same_bytes $(BASE) $(if $(FEW),--few)

planted: $(INSTALLED) ## plant known faults in a copy, one by one (ROOM=models, PART=1/4): do the tests find them?
	$(BIN)/python -m tests.tools.planted $(if $(ROOM),--room $(ROOM)) $(if $(PART),--part $(PART))

gpu: ## check a machine with a GPU, into OUT=folder (DATA=folder with cifar100): docs/gpu.md
	@test -n "$(OUT)" || { echo "error: say where the outputs go: make gpu OUT=folder" >&2; exit 1; }
	@PYTHONPATH=$(CURDIR):$(PYTHONPATH) $(if $(DATA),FEDSDG_DATA=$(abspath $(DATA))) $(PYTHON) -m benchmarks.on_gpu --out $(OUT)

slurm-demo: $(INSTALLED) ## profiles/slurm through a real SLURM on this machine, as root on Debian or Ubuntu
	$(BIN)/python profiles/slurm/demo.py

documents: $(INSTALLED) ## the pages and files that are made from the code
	$(BIN)/python -m fedsdg.experiment.documents
docs: $(INSTALLED) ## the documentation as pages in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"
environment: $(INSTALLED) ## install everything into .venv

# The codes that are compared with; without them their columns say so.
.venv/.rivals: benchmarks/requirements.txt $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --no-deps --requirement $< && touch $@ || \
	  echo "Flower and byzfl could not be installed: their columns stay empty." >&2

# The stamp is written last, with the processor's time: an installation that broke off is made again.
$(INSTALLED): requirements.lock pyproject.toml
	@command -v $(PYTHON) > /dev/null || \
	  { echo "error: there is no $(PYTHON); install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  "error: $(PYTHON) is Python %d.%d, but 3.11 or newer is needed; name one: make PYTHON=python3.12" % v[:2])'
	@echo "Installing the locked environment into .venv; the first time this downloads PyTorch and takes some minutes."
	set -e; $(PYTHON) -m venv .venv; $(BIN)/python -m pip install --quiet --requirement requirements.lock; \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .; times > $@

# Needs uv. Pins everything for all platforms at once; see the head of requirements.lock.
lock: ## pin the newest versions in requirements.lock
	@command -v uv > /dev/null || { echo "error: make lock needs uv (pip install uv)" >&2; exit 1; }
	@sed -n '/^[^#]/q;p' requirements.lock > requirements.lock.new
	uv pip compile pyproject.toml --quiet --extra dev --universal --python-version 3.11 \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  | grep -Ev '^(nvidia-|cuda-|colorama|pywin32|pyreadline3|httpx2-jsfetch)' >> requirements.lock.new
	mv requirements.lock.new requirements.lock

clean: ## remove what the pipeline made, but neither the environment nor finished runs (.fedsdg)
	git clean -fdXq -- results paper_figures .snakemake .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  .import_linter_cache .grimp_cache .benchmarks docs/results
distclean: clean ## remove those too
	rm -rf .venv .fedsdg docs/.fedsdg resources *.egg-info build
