# Two commands to know: `make demo` and `make test`. Everything they need goes into .venv*/ here.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Else each of the thousands of processes that tests start compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo test slow-test test-pythons test-oldest test-oldest-airflow airflow-test airflow-local-test airflow-cluster-test airflow-own-test kubernetes-executor-test kubernetes-executor-matrix celery-test celery-matrix other-logs-test matrix attack busy-test nightly examples docs pictures lint types imports build check-python clean
.PHONY: cluster-test cluster-shared-test cluster-google-test cluster-slices-test cluster-alone-test

PYTHON ?= python3
VENV := .venv
AIRFLOW_VENV := .venv-airflow
CELERY_VENV := .venv-celery
DOCS_VENV := .venv-docs
EXAMPLES_VENV := .venv-examples
EXECUTOR_VENV := .venv-kubernetes-executor
LOGS_VENV := .venv-other-logs
PYTHONS ?= 3.11 3.12 3.13 3.14
# `1` for the first of PYTHONS that can be had, and no other.
HOW_MANY ?= 9
# Where Pythons may be that PATH does not have: pyenv's, and what .ci/debian_python has unpacked.
MORE_PYTHONS = $(shell printf ':%s' $(HOME)/.pyenv/versions/*/bin $(CURDIR)/.venv-python*/usr/bin)
OLDEST_AIRFLOW := 3.1.0
OLDEST_AIRFLOW_VENV := .venv-airflow-$(OLDEST_AIRFLOW)
WORKERS ?= 2
# `slow` for the tests that only `make nightly` runs.
SPEED ?= not slow
# Tests that start Airflows of their own, and need a processor to spare.
OWN_AIRFLOWS := $(addprefix tests/airflow/test_,matrix.py examples.py)
UV = $(VENV)/bin/uv
UV_INSTALL = $(UV) pip install --quiet
PYTEST = $(AGAIN) $(VENV)/bin/python -m pytest -q
AIRFLOW_PYTEST = $(AGAIN) $(AIRFLOW_VENV)/bin/python -m pytest -q

# What the first `make` waits for: a directory of this checkout, and the lists of what goes into it.
installing = echo "installing $$(cat $(2) | grep -c '==') packages ($$(grep -hoE '^(apache-airflow|pytest)==[0-9.]+' $(2) | head -1)) into $(1), once" >&2

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

check-python:
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 14); sys.exit(0 if ok else "Python 3.11, 3.12, 3.13 or 3.14 is needed; %s is %d.%d. Install one and run: make PYTHON=python3.12 ..." % (sys.executable, *sys.version_info[:2]))'

$(VENV)/bin/uv: | check-python
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"

$(VENV)/.ready: pyproject.toml setup.cfg .ci/locks/test.txt | $(VENV)/bin/uv
	@$(call installing,$(VENV),.ci/locks/test.txt)
	@$(UV_INSTALL) --python $(VENV)/bin/python -r .ci/locks/test.txt --editable .
	@touch $@

$(AIRFLOW_VENV)/.ready: pyproject.toml setup.cfg .ci/locks/airflow.txt .ci/locks/airflow-google.txt | $(VENV)/bin/uv
	@$(call installing,$(AIRFLOW_VENV),.ci/locks/airflow.txt .ci/locks/airflow-google.txt)
	@$(UV) venv --quiet --clear --python $(VENV)/bin/python $(AIRFLOW_VENV)
	@$(UV_INSTALL) --python $(AIRFLOW_VENV)/bin/python -r .ci/locks/airflow.txt --editable .
	@$(UV_INSTALL) --python $(AIRFLOW_VENV)/bin/python --no-deps -r .ci/locks/airflow-google.txt
	@touch $@

$(CELERY_VENV)/.ready: pyproject.toml setup.cfg .ci/locks/airflow.txt .ci/locks/airflow-google.txt .ci/locks/celery.txt | $(VENV)/bin/uv
	@$(call installing,$(CELERY_VENV),.ci/locks/airflow.txt .ci/locks/celery.txt)
	@$(UV) venv --quiet --clear --python $(VENV)/bin/python $(CELERY_VENV)
	@$(UV_INSTALL) --python $(CELERY_VENV)/bin/python -r .ci/locks/airflow.txt -r .ci/locks/celery.txt --editable .
	@$(UV_INSTALL) --python $(CELERY_VENV)/bin/python --no-deps -r .ci/locks/airflow-google.txt
	@touch $@

$(EXECUTOR_VENV)/.ready: pyproject.toml setup.cfg .ci/locks/airflow.txt .ci/locks/postgresql.txt | $(VENV)/bin/uv
	@$(call installing,$(EXECUTOR_VENV),.ci/locks/airflow.txt .ci/locks/postgresql.txt)
	@$(UV) venv --quiet --clear --python $(VENV)/bin/python $(EXECUTOR_VENV)
	@$(UV_INSTALL) --python $(EXECUTOR_VENV)/bin/python -r .ci/locks/airflow.txt -r .ci/locks/postgresql.txt --editable .
	@touch $@

$(LOGS_VENV)/.ready: pyproject.toml setup.cfg .ci/locks/other-logs.txt | $(VENV)/bin/uv
	@$(call installing,$(LOGS_VENV),.ci/locks/other-logs.txt)
	@$(UV) venv --quiet --clear --python $(VENV)/bin/python $(LOGS_VENV)
	@$(UV_INSTALL) --python $(LOGS_VENV)/bin/python -r .ci/locks/other-logs.txt --editable .
	@npm install --silent --no-audit --no-fund --prefix $(LOGS_VENV) azurite@3.37.0
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
	@$(PYTEST) -n 4 --timeout 240 && echo "$$SECONDS s; 180 s on two idle cores are the aim ($$(uptime | grep -o 'load.*'))"

slow-test: $(VENV)/.ready ## what is too long for the default suite
	@$(PYTEST) -m "slow and not cluster and not airflow and not examples" -n 2

test-pythons: $(VENV)/.ready ## the default suite on the supported Pythons besides that of `make test`, if they can be had
	@tried=; for version in $(PYTHONS); do \
	  [ "$$version" != "$$($(VENV)/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" ] || continue; \
	  [ "$$(wc -w <<<"$$tried")" -lt $(HOW_MANY) ] || break; \
	  PATH="$$PATH$(MORE_PYTHONS)" $(UV) venv --quiet --clear --python $$version .venv-$$version 2>/dev/null \
	    || { UV=$(UV) .ci/debian_python $$version .venv-python$$version \
	      && $(UV) venv --quiet --clear --python .venv-python$$version/usr/bin/python$$version .venv-$$version; } \
	    || { echo "Python $$version: neither here nor to be downloaded, skipped"; continue; }; \
	  $(UV_INSTALL) --python .venv-$$version/bin/python -r .ci/locks/test.txt --editable . && \
	  { (.venv-$$version/bin/python -m pytest -q -n $(WORKERS) $(TESTS) > .venv-$$version/tests.log 2>&1) & tried="$$tried $$version:$$!"; } || exit 1; \
	done; failed=; for each in $$tried; do \
	  wait $${each#*:} || failed=1; echo "Python $${each%:*}"; cat .venv-$${each%:*}/tests.log; \
	done; [ -z "$$failed" ]

test-oldest: $(VENV)/.ready ## the default suite with the oldest libraries that setup allows, among them those of Airflow 3.1's constraints
	@$(UV) venv --quiet --clear --python $(VENV)/bin/python .venv-oldest
	@$(UV_INSTALL) --python .venv-oldest/bin/python -r .ci/locks/test.txt
	@$(UV_INSTALL) --python .venv-oldest/bin/python --resolution lowest-direct --upgrade --editable .
	@.venv-oldest/bin/python -m pytest -q -n $(WORKERS) $(TESTS)

test-oldest-airflow: $(VENV)/.ready ## the provider's wheel beside Airflow 3.1.0 and the CNCF provider of its day, as its constraints have them
	@PATH="$$PATH$(MORE_PYTHONS)" $(UV) venv --quiet --clear --python 3.11 $(OLDEST_AIRFLOW_VENV)
	@$(UV_INSTALL) --python $(OLDEST_AIRFLOW_VENV)/bin/python -r .ci/locks/airflow-$(OLDEST_AIRFLOW).txt
	@rm -rf build && $(UV) build --quiet --wheel --out-dir $(OLDEST_AIRFLOW_VENV)/dist .
	@$(UV_INSTALL) --python $(OLDEST_AIRFLOW_VENV)/bin/python "$$(echo $(OLDEST_AIRFLOW_VENV)/dist/*.whl)[airflow]"
	@! grep -vxFf <($(UV) pip freeze --quiet --python $(OLDEST_AIRFLOW_VENV)/bin/python) .ci/locks/airflow-$(OLDEST_AIRFLOW).txt \
	  || { echo "the wheel has changed the versions above"; exit 1; }
	@cd / && AIRFLOW_HOME=$(CURDIR)/$(OLDEST_AIRFLOW_VENV)/home $(CURDIR)/$(OLDEST_AIRFLOW_VENV)/bin/airflow providers list | grep airflow-provider-kinetic
	@$(OLDEST_AIRFLOW_VENV)/bin/python -m pytest -q -n $(WORKERS) tests/airflow_provider
	@$(OLDEST_AIRFLOW_VENV)/bin/python -m pytest -q -m airflow tests/airflow/test_testing.py tests/airflow/test_provider_info.py tests/airflow/test_templates.py

airflow-test: airflow-local-test airflow-own-test airflow-cluster-test ## what the provider promises, against a real Airflow

airflow-local-test: $(AIRFLOW_VENV)/.ready # jobs on this machine, in two Airflows that the files share
	@$(AIRFLOW_PYTEST) -m "airflow and not cluster and $(SPEED)" tests/airflow $(OWN_AIRFLOWS:%=--ignore=%) -n 2 --dist loadfile --durations=15

airflow-cluster-test: $(AIRFLOW_VENV)/.ready # jobs on the cluster, in another one
	@$(AIRFLOW_PYTEST) -m "airflow and cluster and $(SPEED)" tests/airflow $(OWN_AIRFLOWS:%=--ignore=%) --durations=15

airflow-own-test: $(AIRFLOW_VENV)/.ready
	@$(AIRFLOW_PYTEST) -m "airflow and $(SPEED)" $(OWN_AIRFLOWS) --durations=5

kubernetes-executor-test: $(EXECUTOR_VENV)/.ready ## tasks whose workers are pods too, on the cluster; needs Debian's postgresql
	@$(EXECUTOR_VENV)/bin/python -m pytest -q -m "airflow and cluster and slow" tests/airflow/test_kubernetes_executor.py --durations=10

attack: $(VENV)/.ready $(AIRFLOW_VENV)/.ready ## the threat model: docs/explanation/security.md, slow tests and the cluster's included
	@$(VENV)/bin/python -m pytest -q -m "attack and not airflow and not (cluster and alone)" -n 2
	@$(VENV)/bin/python -m pytest -q -m "attack and cluster and alone and not airflow"
	@$(AIRFLOW_VENV)/bin/python -m pytest -q -m "attack and airflow" tests/airflow

busy-test: $(VENV)/.ready ## the default suite ten times in a row beside two programs that keep the processors busy
	@for each in 1 2; do timeout 3h $(VENV)/bin/python -c 'while True: pass' & done; trap 'kill $$(jobs -p)' EXIT; \
	for turn in {1..10}; do echo "== turn $$turn of 10"; $(PYTEST) -n 3; done

nightly: ## what is too long for .ci/run: hours on an idle machine; writes benchmarks/nightly.md
	@.ci/nightly

matrix: $(AIRFLOW_VENV)/.ready ## every action in every phase of a task; writes docs/explanation/airflow-actions.md
	@PYTHONPATH=tests/airflow:example_dags $(AIRFLOW_VENV)/bin/python -m matrix \
	  docs/explanation/airflow-actions docs/explanation/airflow-actions.md

celery-test: $(CELERY_VENV)/.ready ## the provider under CeleryExecutor; needs redis-server and PostgreSQL
	@$(AGAIN) $(CELERY_VENV)/bin/python -m pytest -q -m celery tests/airflow/test_celery.py --durations=5

celery-matrix: $(CELERY_VENV)/.ready ## the matrix under CeleryExecutor; writes docs/explanation/airflow-actions.md
	@PYTHONPATH=tests/airflow:example_dags MATRIX_EXECUTOR=celery $(CELERY_VENV)/bin/python -m matrix \
	  docs/explanation/airflow-actions docs/explanation/airflow-actions.md

kubernetes-executor-matrix: $(EXECUTOR_VENV)/.ready ## the matrix under KubernetesExecutor, on the cluster; writes the same page
	@PYTHONPATH=tests/airflow:example_dags MATRIX_EXECUTOR=kubernetes $(EXECUTOR_VENV)/bin/python -m matrix \
	  docs/explanation/airflow-actions docs/explanation/airflow-actions.md

other-logs-test: $(LOGS_VENV)/.ready ## Airflows that keep their logs in S3 or Azure, by stand-ins; needs npm
	@$(AGAIN) $(LOGS_VENV)/bin/python -m pytest -q -m "airflow and slow" tests/airflow/test_other_remote_logs.py --durations=5

cluster-test: cluster-shared-test cluster-google-test cluster-slices-test cluster-alone-test ## jobs on the Kubernetes cluster of $$KUBECONFIG (../shared/cluster has one)

cluster-shared-test: $(VENV)/.ready
	@$(PYTEST) -m "cluster and not airflow and not alone and $(SPEED)" -n 4 --durations=15

cluster-google-test: $(VENV)/.ready # may run beside those of slices
	@$(PYTEST) -m "alone and google and $(SPEED)" --durations=10

cluster-slices-test: $(VENV)/.ready
	@$(PYTEST) -m "alone and slices and $(SPEED)" --durations=10

cluster-alone-test: $(VENV)/.ready
	@$(PYTEST) -m "cluster and not airflow and alone and not google and not slices and $(SPEED)" --durations=15

examples: $(EXAMPLES_VENV)/.ready ## everything in examples/, on this machine (5 GB: torch for Linux brings CUDA)
	@$(EXAMPLES_VENV)/bin/python -m pytest -q -m examples tests/examples

docs: $(DOCS_VENV)/.ready ## the documentation's site, into site/; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@$(DOCS_VENV)/bin/python .ci/check_site.py site

pictures: $(AIRFLOW_VENV)/.ready ## those of the documentation's home page, from a real run; needs Chromium and tmux
	@PYTHONPATH=example_dags:tests/airflow $(AIRFLOW_VENV)/bin/python .ci/pictures.py docs/pictures

lint: $(VENV)/.ready ## ruff, formatting included
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .

types: $(VENV)/.ready $(AIRFLOW_VENV)/.ready ## mypy --strict on everything that ships, and on the benchmarks
	@$(VENV)/bin/mypy --python-executable $(AIRFLOW_VENV)/bin/python
	@$(VENV)/bin/mypy --python-executable $(AIRFLOW_VENV)/bin/python tests/typing/usage.py
	@$(VENV)/bin/mypy --python-executable $(AIRFLOW_VENV)/bin/python benchmarks/*.py

imports: $(VENV)/.ready ## the import contracts of setup.cfg
	@$(VENV)/bin/lint-imports

build: $(VENV)/.ready ## wheel and sdist into dist/, the wheel tried in a clean environment
	@rm -rf dist build && $(VENV)/bin/python -m build --installer uv --outdir dist . >/dev/null && ls dist
	@$(VENV)/bin/python .ci/check_wheel.py

clean: ## remove environments and build products
	@rm -rf .venv* dist build site .demo *.egg-info
