# Two commands to know: `make demo` and `make test`. Everything they need goes into .venv*/ here.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test slow-test test-pythons airflow-test airflow-slow-test matrix cluster-test cluster-slow-test examples docs lint types imports build check-python clean

PYTHON ?= python3
VENV := .venv
AIRFLOW_VENV := .venv-airflow
DOCS_VENV := .venv-docs
EXAMPLES_VENV := .venv-examples
PYTHONS ?= 3.11 3.12 3.13
WORKERS ?= 2
# Some of the tests that start an Airflow of their own, which run beside the others.
OWN_AIRFLOWS := $(addprefix tests/airflow/test_,matrix.py examples.py remote_logs.py)
UV = $(VENV)/bin/uv
UV_INSTALL = $(UV) pip install --quiet

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

check-python:
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else "Python 3.11, 3.12 or 3.13 is needed; %s is %d.%d. Install one and run: make PYTHON=python3.12 ..." % (sys.executable, *sys.version_info[:2]))'

$(VENV)/bin/uv: | check-python
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"

$(VENV)/.ready: pyproject.toml setup.cfg .ci/locks/test.txt | $(VENV)/bin/uv
	@$(UV_INSTALL) --python $(VENV)/bin/python -r .ci/locks/test.txt --editable .
	@touch $@

$(AIRFLOW_VENV)/.ready: pyproject.toml setup.cfg .ci/locks/airflow.txt .ci/locks/airflow-google.txt | $(VENV)/bin/uv
	@$(UV) venv --quiet --clear --python $(VENV)/bin/python $(AIRFLOW_VENV)
	@$(UV_INSTALL) --python $(AIRFLOW_VENV)/bin/python -r .ci/locks/airflow.txt --editable .
	@$(UV_INSTALL) --python $(AIRFLOW_VENV)/bin/python --no-deps -r .ci/locks/airflow-google.txt
	@touch $@

$(DOCS_VENV)/.ready: .ci/locks/docs.txt | $(VENV)/bin/uv
	@$(UV) venv --quiet --clear --python $(VENV)/bin/python $(DOCS_VENV)
	@$(UV_INSTALL) --python $(DOCS_VENV)/bin/python -r .ci/locks/docs.txt
	@touch $@

$(EXAMPLES_VENV)/.ready: pyproject.toml setup.cfg .ci/locks/test.txt .ci/locks/examples.txt | $(VENV)/bin/uv
	@$(UV) venv --quiet --clear --python $(VENV)/bin/python $(EXAMPLES_VENV)
	@$(UV_INSTALL) --python $(EXAMPLES_VENV)/bin/python -r .ci/locks/test.txt -r .ci/locks/examples.txt --editable .
	@touch $@

demo: $(AIRFLOW_VENV)/.ready ## a real Airflow runs example_dags/fan_out.py here (KEEP=1 leaves it running)
	@exec $(AIRFLOW_VENV)/bin/python example_dags/run_demo.py

test: $(VENV)/.ready ## the default suite: fast, no network, no Airflow
	@$(VENV)/bin/python .ci/twice.py -n 3

slow-test: $(VENV)/.ready ## what is too long for the default suite
	@$(VENV)/bin/python .ci/twice.py -m "slow and not cluster and not airflow" -n 2

test-pythons: $(VENV)/.ready ## the default suite on the supported Pythons besides that of `make test`, if they can be had
	@tried=; for version in $(PYTHONS); do \
	  [ "$$version" != "$$($(VENV)/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ] || continue; \
	  PATH="$$PATH$$(printf ':%s' $$HOME/.pyenv/versions/*/bin)" \
	    $(UV) venv --quiet --clear --python $$version .venv-$$version \
	    || { echo "Python $$version: neither here nor to be downloaded, skipped"; continue; }; \
	  $(UV_INSTALL) --python .venv-$$version/bin/python -r .ci/locks/test.txt --editable . && \
	  { (.venv-$$version/bin/python .ci/twice.py -n $(WORKERS) > .venv-$$version/tests.log 2>&1) & tried="$$tried $$version:$$!"; } || exit 1; \
	done; failed=; for each in $$tried; do \
	  wait $${each#*:} || failed=1; echo "Python $${each%:*}"; cat .venv-$${each%:*}/tests.log; \
	done; [ -z "$$failed" ]

airflow-test: $(AIRFLOW_VENV)/.ready ## what the provider promises, against a real Airflow
	@$(AIRFLOW_VENV)/bin/python .ci/twice.py -m "airflow and not slow" tests/airflow $(OWN_AIRFLOWS:%=--ignore=%) --durations=15 \
	  + -m "airflow and not slow" $(OWN_AIRFLOWS) --durations=5

airflow-slow-test: $(AIRFLOW_VENV)/.ready ## the same, of what takes too long for CI: nodes and the API server are lost
	@$(AIRFLOW_VENV)/bin/python -m pytest -q -m "airflow and slow" tests/airflow

matrix: $(AIRFLOW_VENV)/.ready ## every action in every phase of a task; writes docs/explanation/airflow-actions.md
	@PYTHONPATH=tests/airflow:example_dags $(AIRFLOW_VENV)/bin/python -m matrix \
	  docs/explanation/airflow-actions docs/explanation/airflow-actions.md

cluster-test: $(VENV)/.ready ## jobs on the Kubernetes cluster of $$KUBECONFIG (../shared/cluster has one)
	@$(VENV)/bin/python .ci/twice.py -m "cluster and not alone" -n 5 --durations=10 \
	  -- -m "alone and google and not slow" --durations=10 + -m "alone and slices and not slow" --durations=10 \
	  -- -m "cluster and alone and not slow and not google and not slices" --durations=25

cluster-slow-test: $(VENV)/.ready ## the same, of what takes too long for CI: slices whose hosts die
	@$(VENV)/bin/python -m pytest -q -m "cluster and slow"

examples: $(EXAMPLES_VENV)/.ready ## everything in examples/, on this machine (5 GB: torch for Linux brings CUDA)
	@$(EXAMPLES_VENV)/bin/python .ci/twice.py -m examples tests/examples

docs: $(DOCS_VENV)/.ready ## the documentation's site, into site/; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@$(DOCS_VENV)/bin/python .ci/check_site.py site

lint: $(VENV)/.ready ## ruff, formatting included
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

types: $(VENV)/.ready $(AIRFLOW_VENV)/.ready ## mypy --strict on everything that ships
	@$(VENV)/bin/mypy --python-executable $(AIRFLOW_VENV)/bin/python
	@$(VENV)/bin/mypy --python-executable $(AIRFLOW_VENV)/bin/python tests/typing/usage.py

imports: $(VENV)/.ready ## the import contracts of setup.cfg
	@$(VENV)/bin/lint-imports

build: $(VENV)/.ready ## wheel and sdist into dist/, the wheel tried in a clean environment
	@rm -rf dist build && $(VENV)/bin/python -m build --installer uv --outdir dist . >/dev/null && ls dist
	@$(VENV)/bin/python .ci/check_wheel.py

clean: ## remove environments and build products
	@rm -rf .venv* dist build site .demo *.egg-info
