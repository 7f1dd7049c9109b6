# make notebooks [PROFILE=quick] [ARGS="--only 02"]    run the lessons; pages in build/
# make test                                            lint, format, tests
# make site                                            docs/ and the lessons that ran, in build/site
# make lab [ARGS="--no-browser --port 8899"]           open the lessons in JupyterLab, 00 first
# make browser                                         drive them in Chromium, where there is one
# make clean                                           remove build/ and caches, keep .venv
# make locked                                          install as CI does, each file's hash checked
# make lock UV=path/to/uv                              write the hashes of constraints.txt anew
# PYTHON=python3.12 picks the interpreter that .venv is made from.

PYTHON ?= python3
PROFILE ?= full
ARGS ?=
UV ?= uv
LESSONS ?= notebooks
VENV_PYTHON := .venv/bin/python
INSTALLED := .venv/.installed
SITE_TOOLS := .venv/.installed-docs
PIP := $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check

define NEW_VENV
[ "$$(uname -s)" = Linux ] || { echo "Triton runs on Linux; this is $$(uname -s)." >&2; exit 1; }
"$(PYTHON)" -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 13) or sys.exit("Python 3.11, 3.12 or 3.13 is needed; %s is %s. Try make PYTHON=python3.12" % (sys.executable, sys.version.split()[0]))'
echo "Installing into .venv: some minutes the first time."
"$(PYTHON)" -m venv .venv
endef

.PHONY: notebooks test site lab browser clean locked lock

notebooks: $(INSTALLED)
	@$(VENV_PYTHON) -m dsv4kernels run --profile "$(PROFILE)" $(ARGS)

test: $(INSTALLED)
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m pytest

site: $(SITE_TOOLS)
	@[ -e build/ledger.json ] || $(MAKE) notebooks
	@$(VENV_PYTHON) -m dsv4kernels site

# The folder above the lessons is open, so that their links to docs/ lead somewhere.
lab: $(INSTALLED)
	JUPYTER_PREFER_ENV_PATH=1 "$(VENV_PYTHON)" -m jupyterlab --ServerApp.root_dir="$(LESSONS)/.." \
		--LabApp.default_url=/lab/tree/$(notdir $(LESSONS))/00_start_here.ipynb $(ARGS)

browser: $(INSTALLED)
	$(VENV_PYTHON) -m pytest tests/browser -m browser -n 0 -rs

clean:
	rm -rf build dsv4kernels.egg-info .pytest_cache .ruff_cache .hypothesis
	find dsv4kernels tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(NEW_VENV)
	@$(PIP) -c constraints.txt -e ".[test]"
	@touch $@

$(SITE_TOOLS): $(INSTALLED)
	@$(PIP) -c constraints.txt -e ".[docs]"
	@touch $@

# torch has no hash: its CPU build comes from PyTorch's own index, CUDA's from PyPI.
locked:
	@$(NEW_VENV)
	@$(PIP) --no-deps -c constraints.txt torch
	@$(PIP) --no-deps --require-hashes -r requirements-ci.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@$(VENV_PYTHON) -m pip check --disable-pip-version-check
	@touch $(INSTALLED) $(SITE_TOOLS)

lock:
	$(UV) pip compile --no-config --no-deps --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-emit-package torch constraints.txt -o requirements-ci.txt
