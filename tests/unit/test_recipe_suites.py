"""The suites and predictions of the published recipe, as they stand in the repository."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_joules import engines, knobs, suite, synthetic
from pytest_joules.cli import _pytest
from pytest_joules.prediction import judge, refusals

ROOT = Path(__file__).parents[2]
SUITES = sorted(path.stem for path in (ROOT / "suites").glob("*.yaml"))
PAGE = (ROOT / "docs" / "recipe.md").read_text()

PUBLISHED: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("speculative", "test_unchecked_drafts_on_prose_cost_nearly_four_times", (3.6, 3.95)),
    ("speculative", "test_a_threshold_of_a_half_takes_the_penalty_away", (0.5,)),
    ("speculative", "test_prose_gets_a_third_faster", (1.3,)),
    ("speculative", "test_it_saves_a_third_of_the_energy", (0.33,)),
    ("format", "test_two_bits_cost_more_than_four_on_a_7b", (1.18,)),
    ("format_correct", "test_on_a_7b_four_bits_are_21_percent_cheaper", (0.21,)),
    ("format_correct", "test_on_a_32b_two_bits_are_16_percent_cheaper", (0.16,)),
    ("warm_cold", "test_cold_understates_by_20_to_30_percent", (0.20, 0.30)),
    ("warm_cold", "test_power_is_a_quarter_higher_once_warm", (1.26,)),
    ("idle", "test_it_idles_at_17_to_26_watts", (17, 26)),
    ("idle", "test_idle_is_half_of_what_a_slow_machine_draws", (0.5,)),
    ("reference", "test_the_recipe_costs_a_third_to_a_half", (0.33, 0.5)),
    ("reference_capped", "test_the_recipe_costs_a_third_to_a_half", (0.33, 0.5)),
    ("clock_cap", "test_1800_mhz_saves_37_percent", (0.37,)),
    ("clock_cap", "test_1200_mhz_saves_42_percent", (0.42,)),
    ("batch_grid", "test_32_costs_15_percent_more_than_16", (1.15,)),
)
"""Of each claim that states a published figure the module, the function and the figures; 126 W against 100 W is 1.26."""


def rows(heading: str) -> dict[str, list[str]]:
    """Cells by the first one's word in backquotes, of the table below a heading of the page."""
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| `")
    ]
    return {line[0].strip("`"): line[1:] for line in cells}


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_of_the_repository_loads(name: str) -> None:
    found = suite.load(ROOT / "suites" / f"{name}.yaml", tuple(knobs.knobs()), tuple(engines.engines()))
    assert found.conditions


def test_every_suite_stands_in_the_page_with_a_small_one_or_why_there_is_none() -> None:
    told = rows("Suites")
    full = [name for name in SUITES if not name.endswith("-small")]
    assert set(told) >= set(full)
    for name in full:
        small = told[name][-1]
        named = re.findall(r"`([\w.-]+)`", small)
        assert small.startswith("none: ") or named, f"{name}: neither a small suite nor why there is none"
        assert set(named) <= set(SUITES), f"{name}: {small}"
        if f"{name}-small" in SUITES:
            assert f"{name}-small" in named


def test_every_suite_has_predictions_and_every_module_a_suite() -> None:
    marked = {
        node.args[0].value
        for path in (ROOT / "predictions").glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.joules" and node.args
        if isinstance(node.args[0], ast.Constant)
    }
    assert marked == set(SUITES)


@pytest.mark.parametrize(("module", "function", "figures"), PUBLISHED)
def test_a_claim_states_the_published_figure(module: str, function: str, figures: tuple[float, ...]) -> None:
    tree = ast.parse((ROOT / "predictions" / f"test_{module}.py").read_text())
    [found] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    constants = {
        node.value for node in ast.walk(found) if isinstance(node, ast.Constant) and not isinstance(node.value, str)
    }
    assert set(figures) <= constants


@pytest.fixture(scope="module")
def collected() -> Any:
    """The session of one collection of every prediction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return _pytest.run(["--joules-check", "--collect-only"], [ROOT / "predictions"]).session  # type: ignore[union-attr]


def test_every_prediction_can_be_judged_and_can_fail(collected: Any) -> None:
    made: dict[tuple[str, str | None], list[Any]] = {}
    assert collected._collected
    for one in collected._collected.values():
        prediction = one.prediction
        assert refusals(prediction.function, tuple(prediction.params)) == []
        key = (prediction.suite, prediction.against)
        if key not in made:
            own = collected.suite_of(one)
            other = collected.suite_of(one, prediction.against) if prediction.against else None
            compared = (other.axes, other.conditions) if other else None
            every = synthetic.pairs(own.axes, own.conditions, compared, own.protocol.passes, own.undefined)
            # Nearly every claim fails on one of a few; a search of all would take a minute.
            made[key] = list(itertools.islice(every, 60))
        words = {judge(prediction, *pair).word for pair in made[key]}
        assert "refuted" in words, prediction.name
        assert words <= {"held", "refuted"}, prediction.name
