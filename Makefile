# `make` renders everything from the embedded data, `make test` checks it; both set themselves up.
PYTHON ?= python3
STUDY ?= tiny
QUIET := --quiet progress rules host reason
BIN := .venv/bin
READY := .venv/.ready
export PATH := $(CURDIR)/$(BIN):$(PATH)
export OMP_NUM_THREADS ?= 1
# glibc keeps freed memory instead of returning it after every step: 14 to 33 % faster on a CPU
export MALLOC_MMAP_MAX_ ?= 0
export MALLOC_TRIM_THRESHOLD_ ?= 8000000000
# bit-identical results on every x86 CPU (cirl/run/machine.py)
export ATEN_CPU_CAPABILITY ?= avx2
export ONEDNN_MAX_CPU_ISA ?= AVX2
export MKL_CBWR ?= COMPATIBLE
# names and text are UTF-8 whatever the locale
export PYTHONUTF8 ?= 1

all: $(READY) ## set up, train a core on the embedded data, compare it with the records, draw every figure and table
	snakemake --config study=tiny core=yes $(QUIET)
	@echo "Open figures/tiny/report.html"

everything: $(READY) ## train the whole study on the embedded data, all methods and seeds (a night)
	snakemake --config study=tiny extras=yes $(QUIET)

digits lite paper: $(READY) ## on Digits-DG, on PACS at a CPU's size, or as published: train what has no record, draw everything
	snakemake --config study=$@ missing=yes $(QUIET)

render: $(READY) ## draw a study's items from the collected results, training nothing: make render STUDY=paper
	snakemake --config study=$(STUDY) train=no --forceall $(QUIET)

test: $(READY) ## the whole test suite, notebooks included (minutes)
	pytest -n 2 --dist worksteal

test-fast: $(READY) ## the tests that take seconds
	pytest -n 2 --dist worksteal -m "not slow"

test-slurm: $(READY) ## the study on a real SLURM that is installed and started here; needs Debian and root (minutes)
	python tests/slurm/run.py

test-faults: $(READY) ## kills, damaged files, full disks, concurrent processes, untrusted files (minutes)
	pytest -n 2 tests/test_faults.py

soak: $(READY) ## what make trains, while its processes are killed every few seconds, against undisturbed runs (an hour)
	python tests/soak.py --only '$(ONLY)'

lab: $(READY) ## open the notebooks in JupyterLab, the tour first
	jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_tour.ipynb

lint: $(READY) ## ruff on code and notebooks, mypy on the package
	ruff check . && ruff format --check . && mypy

hooks: $(READY) ## install the pre-commit hooks
	pre-commit install

setup: $(READY) ## create .venv and install the pinned packages

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V). Try make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --progress-bar on -r requirements.txt
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --editable .  # setuptools warns of folders named like the package
	@mkdir -p .venv/etc/ipython  # no warning of each kernel that its connection to this machine is not encrypted
	@echo "c.IPKernelApp.log_level = 'ERROR'" > .venv/etc/ipython/ipython_kernel_config.py
	@touch $@

help: ## this list
	@grep -hE '^[a-z -]+:.*##' Makefile | sed -E 's/^([a-z -]+):.*## (.*)/make \1|\2/' | column -t -s '|'

.PHONY: all everything digits lite paper render test test-fast test-slurm test-faults soak lab lint hooks setup help
