# uv from PATH, or fetched into .uv/ when there is none. The redirection matters to old make.
UV := $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)

.PHONY: quickstart test replay lint

quickstart: $(UV)
	$(UV) run pytest predictions/test_quickstart.py

test: $(UV)
	$(UV) run pytest

replay: $(UV)
	$(UV) run joules replay all

lint: $(UV)
	$(UV) run ruff check
	$(UV) run ruff format --check
	$(UV) run mypy
	$(UV) run lint-imports

.uv/bin/uv:
	python3 -m venv .uv && .uv/bin/pip install --quiet uv
