# uv from PATH, or fetched into .uv/ when there is none. The redirection matters to old make.
UV := $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)

.PHONY: quickstart test replay costs check-costs examples lint docs

quickstart: $(UV)
	$(UV) run pytest predictions/test_quickstart.py

test: $(UV)
	$(UV) run pytest

replay: $(UV)
	$(UV) run joules replay all

# The table of what a token costs, anew from results/.
costs: $(UV)
	$(UV) run joules costs -o .

check-costs: $(UV)
	$(UV) run joules costs --check

lint: $(UV)
	$(UV) run ruff check
	$(UV) run ruff format --check
	$(UV) run mypy
	$(UV) run lint-imports

# The notes under docs/examples/, anew from results/.
examples: $(UV)
	for run in 20261129T235420Z-f37884 20261025T000000Z-0315e3 20261025T000000Z-5a0d21 20261025T000000Z-c2ecd2; do \
		JOULES_STATE_DIR=/nonexistent $(UV) run joules note $$run -o docs/examples || exit 1; done

# Into site/, without the package and its compiler: the pages need neither.
docs: $(UV)
	NO_MKDOCS_2_WARNING=1 $(UV) run --only-group docs mkdocs build --strict

.uv/bin/uv:
	python3 -m venv .uv && .uv/bin/pip install --quiet uv
