# `make` renders everything from the embedded data, `make test` checks it; both set themselves up.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
export OMP_NUM_THREADS ?= 1

all: $(READY) ## set up, then train DeepAll and CIRL on the embedded data and execute the tour
	$(BIN)/papermill notebooks/02_train.ipynb data/executed/train_deepall.ipynb -p method deepall --cwd notebooks
	$(BIN)/papermill notebooks/02_train.ipynb data/executed/train_cirl.ipynb -p method cirl --cwd notebooks
	$(BIN)/papermill notebooks/00_tour.ipynb data/executed/00_tour.ipynb --cwd notebooks

test: $(READY) ## the whole test suite, notebooks included (minutes)
	$(BIN)/pytest -n 2

test-fast: $(READY) ## the tests that take seconds
	$(BIN)/pytest -n 2 -m "not slow"

lab: $(READY) ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks

lint: $(READY) ## ruff on code and notebooks
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

hooks: $(READY) ## install the pre-commit hooks
	$(BIN)/pre-commit install

setup: $(READY) ## create .venv and install the pinned packages

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V). Try make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --progress-bar on -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	@mkdir -p data/executed && touch $@

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/make \1|\2/' | column -t -s '|'

.PHONY: all test test-fast lab lint hooks setup help
