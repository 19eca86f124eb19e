"""Stored runs as records for other tools, and the schemas of the files."""

import csv
import functools
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import jsonschema
import pytest
from hypothesis import given, settings
from pytest_benchmark.stats import Stats

from pytest_joules import schemas, store
from pytest_joules.engines import engines
from pytest_joules.errors import UsageError, Void
from pytest_joules.knobs import knobs
from pytest_joules.note import exports
from pytest_joules.records import Gate, PublishedCell, RequestRecord
from pytest_joules.suite import mapping_of

ROOT = Path(__file__).parents[2]

ANSWER = RequestRecord(
    slot=0,
    round=0,
    sent_s=0.0,
    received_s=9.0,
    prompt_n=20,
    cache_n=0,
    predicted_n=128,
    prompt_ms=10.0,
    predicted_ms=900.0,
    stop_type="limit",
)
FLAG = Gate(name="sensor updates", outcome="flag", value=7.0, limit="10", remedy="a longer window")
VOID = Gate(name="answers complete", outcome="void", value="3 of 4", limit="all", remedy="see the log")


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


@pytest.fixture
def run(make_run, make_window):
    """Two conditions of two passes; at 1 the second takes 12 s, at 8 one window is void."""
    return make_run(
        make_window(1, 0, requests=(ANSWER,)),
        make_window(8, 0, requests=(ANSWER,)),
        make_window(8, 1, outcome="void", gates=(VOID,)),
        make_window(1, 1, requests=(ANSWER,), end_mono=112.0, outcome="flagged", gates=(FLAG,)),
    )


def test_a_row_holds_the_mean_of_the_passes_and_what_speaks_against_it(run) -> None:
    one, eight = exports.conditions(run, ("parallel",))
    assert (one["parallel"], one["passes"]) == (1, 2)
    assert one["tokens_per_s"] == pytest.approx((128 / 10 + 128 / 12) / 2)
    assert (one["basis"], one["scope"], one["covers"]) == ("measured", "chip", "cpu")
    assert (one["outcome"], one["reasons"]) == ("flagged", "sensor updates: 7 (limit: 10); a longer window")
    assert eight["outcome"] == "void"
    assert "answers complete" in str(eight["reasons"])
    assert all(eight[name] is None for name in ("energy_per_token_mj", "tokens", "energy_per_token_spread"))


def test_what_is_not_known_is_an_empty_field_and_never_zero(run) -> None:
    _, eight = rows_of(exports.csv_text(list(exports.conditions(run, ("parallel",)))))
    assert eight["energy_per_token_mj"] == eight["tokens"] == eight["window_s"] == ""


def test_a_void_window_shows_its_length_alone(run) -> None:
    void = next(row for row in exports.windows(run, ("parallel",)) if row["outcome"] == "void")
    assert (void["window_s"], void["pass"]) == (10.0, 2)
    assert all(void[name] is None for name in ("energy_j", "uncertainty_j", "tokens", "tokens_per_s", "power_w"))


def test_an_idle_window_has_power_and_no_tokens(make_run, make_window) -> None:
    idle = make_window(role="idle_before", condition={}, tokens=0, prompt_tokens=0, energy_j=30.0)
    [row] = exports.windows(make_run(idle), ("parallel",))
    assert (row["role"], row["power_w"], row["parallel"], row["pass"]) == ("idle_before", 3.0, None, None)
    assert all(row[name] is None for name in ("tokens", "tokens_per_s", "energy_per_token_mj", "slots", "requests"))


def test_runs_of_other_axes_stand_in_one_table(make_run, make_window) -> None:
    swept = make_run(make_window(8))
    fixed = replace(
        make_run(),
        windows=(make_window(condition={"flash_attention": "on"}),),
        conditions=({"flash_attention": "on"},),
        axes=("flash_attention",),
        suite={"question": "?", "server": {"parallel": 4}},
    )
    axes = exports.axes_of([swept, fixed])
    first, second = (next(exports.conditions(run, axes)) for run in (swept, fixed))
    assert list(first) == list(second)
    assert (first["parallel"], first["flash_attention"]) == (8, None)
    assert (second["parallel"], second["flash_attention"]) == (4, "on")


def test_a_varied_model_is_named_by_its_condition(make_run, make_window) -> None:
    models = tuple({"name": name, "format": "q4_0"} for name in ("a-7b", "b-7b"))
    windows = [make_window(condition={"parallel": 1, "model": model["name"]}) for model in models]
    run = make_run(*windows, axes=("parallel", "model"), conditions=tuple(w.condition for w in windows), models=models)
    found = list(exports.conditions(run, exports.axes_of([run])))
    assert [row["model"] for row in found] == ["a-7b", "b-7b"]
    assert list(found[0]).count("model") == 1


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("＝1", "'＝1"),
        ("\n=1", "'\n=1"),
        ("\t=1", r"\t=1"),
        ("\r=1", r"\r=1"),
        ("\x1b[2J", r"\x1b[2J"),
    ],
)
def test_no_name_is_a_formula_or_commands_a_terminal(make_run, make_window, name: str, shown: str) -> None:
    run = make_run(make_window(1), suite_name=name, deviations=(name,))
    [row] = rows_of(exports.csv_text(list(exports.conditions(run, ("parallel",)))))
    assert row["suite"] == row["deviations"] == shown


def test_numbers_and_inner_signs_are_left_alone() -> None:
    text = exports.csv_text([{"a": -1.5, "b": "x=1", "c": True, "d": 'say "a, b"\nor not', "e": None}])
    assert rows_of(text) == [{"a": "-1.5", "b": "x=1", "c": "true", "d": 'say "a, b"\nor not', "e": ""}]


def test_an_infinite_figure_is_refused(make_run, make_window) -> None:
    run = make_run(make_window(1, energy_j=float("inf")))
    with pytest.raises(UsageError, match=r"energy_per_token_mj at parallel=1 is inf, which is no figure"):
        list(exports.conditions(run, ("parallel",)))
    with pytest.raises(UsageError, match="is inf"):
        exports.benchmarks(run)


def test_a_published_table_says_what_it_lacks(make_run) -> None:
    cells = (
        PublishedCell(condition={"parallel": 1}, figures={"energy_per_token_mj": 534.0}, spreads={"energy_per_token_mj": 0.05}),
        PublishedCell(condition={"parallel": 2}, missing={"energy_per_token_mj": "it was printed as a range"}),
    )  # fmt: skip
    run = make_run(published=cells, conditions=tuple(cell.condition for cell in cells))
    one, two = exports.conditions(run, ("parallel",))
    assert (one["energy_per_token_mj"], one["energy_per_token_spread"], one["outcome"]) == (534.0, 0.05, "measured")
    assert (two["energy_per_token_mj"], two["outcome"]) == (None, "flagged")
    assert two["reasons"] == "energy_per_token_mj: it was printed as a range"
    with pytest.raises(Void, match="the passes' own figures were not published"):
        exports.benchmarks(run)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_statistics_are_those_of_pytest_benchmark(data: list[float]) -> None:
    theirs = Stats()
    theirs.data = data
    expected = theirs.as_dict()
    found = exports.stats(data)
    assert list(found) == list(expected)
    assert {k: v for k, v in found.items() if k != "outliers"} == pytest.approx(
        {k: v for k, v in expected.items() if k != "outliers"}
    )
    assert found["outliers"] == expected["outliers"]


def test_a_benchmark_is_a_condition_and_a_round_is_a_pass(run) -> None:
    made = exports.benchmarks(run)
    [benchmark] = made.file["benchmarks"]
    assert benchmark["name"] == "made-up[parallel=1]"
    assert benchmark["params"] == {"parallel": 1}
    assert benchmark["stats"]["data"] == pytest.approx([10 / 128, 12 / 128])
    assert benchmark["stats"]["rounds"] == 2
    assert benchmark["extra_info"]["energy_per_token_mj"] == pytest.approx(1000 * 200 / 128)
    assert benchmark["extra_info"]["basis"] == "measured"
    [left_out] = made.left_out
    assert left_out.startswith("parallel=8: pass 2: answers complete")


def test_another_unit_than_seconds_is_said_where_the_tool_shows_it(run) -> None:
    [benchmark] = exports.benchmarks(run, "energy_per_token_mj").file["benchmarks"]
    assert benchmark["name"] == "made-up[parallel=1] (read s as J)"
    assert benchmark["group"] == "made-up: energy_per_token_mj, chip (cpu), measured; read s as J"
    assert benchmark["stats"]["mean"] == pytest.approx(200 / 128)
    [power] = exports.benchmarks(run, "power_w").file["benchmarks"]
    assert power["name"].endswith("(read s as W)")
    assert power["stats"]["max"] == pytest.approx(20.0)


@pytest.mark.parametrize("metric", [m for m in exports.BENCHMARK_METRICS if m.endswith("_s")])
def test_times_are_given_as_they_are(make_run, make_window, metric: str) -> None:
    streamed = replace(ANSWER, first_token_s=0.5, inter_token_median_s=0.1)
    [benchmark] = exports.benchmarks(make_run(make_window(1, requests=(streamed,))), metric).file["benchmarks"]
    assert "read s" not in benchmark["name"] + benchmark["group"]
    expected = {"time_per_token_s": 10 / 128, "window_s": 10.0, "time_to_first_token_s": 0.5, "inter_token_s": 0.1}
    assert benchmark["stats"]["mean"] == pytest.approx(expected[metric])


def test_a_metric_that_was_not_measured_is_no_benchmark(run) -> None:
    with pytest.raises(Void, match=r"parallel=1: time_to_first_token_s is undefined: the answers were not streamed"):
        exports.benchmarks(run, "time_to_first_token_s")


@functools.cache
def made(name: str) -> dict[str, Any]:
    return schemas.suite(tuple(knobs()), tuple(engines())) if name == "suite" else getattr(schemas, name)()


@pytest.mark.parametrize("name", ["suite", "run", "verdict"])
def test_the_kept_schemas_are_what_the_code_makes(name: str) -> None:
    kept = json.loads((ROOT / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert kept == made(name), "renew them: joules export --format json-schema -o schemas --force"
    jsonschema.Draft202012Validator.check_schema(kept)


def faults(name: str, record: object) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(made(name)).iter_errors(record)]


@pytest.mark.parametrize("path", sorted((ROOT / "suites").glob("**/*.yaml")), ids=lambda path: path.stem)
def test_every_suite_here_fits_its_schema(path: Path) -> None:
    assert faults("suite", mapping_of(path, "a suite")[0]) == []


def test_every_result_here_fits_its_schema() -> None:
    files = store.run_files(ROOT / "results")
    assert files
    for path in files:
        assert faults("run", json.loads(path.read_text(encoding="utf-8"))) == [], path
        for line in path.with_suffix(".verdicts.jsonl").read_text(encoding="utf-8").splitlines():
            assert faults("verdict", json.loads(line)) == [], path


def test_what_a_run_is_written_as_fits_its_schema(run) -> None:
    assert faults("run", store.plain(store.as_record(run))) == []


SUITE = {"question": "Is it so?", "model": "made-up-7b"}


@pytest.mark.parametrize(
    "changes",
    [
        {"vary": {"parallel": [1, 2], "engine": ["llama-server", "in-process"], "warm": ["cold", "warm"]}},
        {"server": {"threads": None, "gpu_layers": 12}, "request": {"temperature": 0, "lengths": [64, 256]}},
        {"protocol": {"order": "abba"}, "require": {"basis": "any", "scope": "wall"}},
    ],
)
def test_what_the_reader_takes_fits_the_schema(changes: dict[str, Any]) -> None:
    assert faults("suite", SUITE | changes) == []


def test_a_suite_that_extends_another_may_leave_out_what_that_one_has() -> None:
    assert faults("suite", {"extends": "decode-batch", "protocol": {"passes": 8}}) == []
    assert faults("suite", {"question": "Which?", "vary": {"model": ["a", "b"]}}) == []
    assert faults("suite", {"model": "a"})
    assert faults("suite", {"question": "Which?"})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"questoin": "?"}, "questoin"),
        ({"name": "x"}, "name"),
        ({"server": {"paralel": 2}}, "paralel"),
        ({"server": {"parallel": "8"}}, "'8'"),
        ({"protocol": {"order": "balancd"}}, "balancd"),
        ({"protocol": {"passes": 0}}, "0"),
        ({"request": {"prompt": "long"}}, "short"),
        ({"require": {"basis": "guessed"}}, "guessed"),
        ({"engine": "lama-server"}, "lama-server"),
        ({"knobs": {"cpu_max_ghz": 2}}, "cpu_max_ghz"),
        ({"vary": {"parallel": 8}}, "8"),
        ({"vary": {"parallel": []}}, "[]"),
        ({"vary": {"parallel": [1, 1]}}, "non-unique"),
        ({"vary": {"parallel": [1, "2"]}}, "'2'"),
        ({"vary": {"lengths": [[64]]}}, "lengths"),
        ({"vary": {"cpu_max_mhz": [[2000]]}}, "[2000]"),
        ({"vary": {"order": ["abba"]}}, "order"),
    ],
)
def test_a_slip_in_a_suite_does_not_fit(changes: dict[str, Any], word: str) -> None:
    assert word in " ".join(faults("suite", SUITE | changes))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("run", {"passes": "2"}),
        ("run", {"schema_version": 2}),
        ("run", {"meter": {}}),
        ("verdict", {"word": "proven"}),
        ("verdict", {"agreement": "95 %"}),
    ],
)
def test_a_wrong_value_in_a_result_does_not_fit(run, name: str, changes: dict[str, Any]) -> None:
    good = store.plain(store.as_record(run)) if name == "run" else {"prediction": "x", "claim": "y", "word": "held"}
    assert faults(name, good) == []
    assert faults(name, good | changes)


def test_the_words_of_a_schema_are_those_of_the_docstrings() -> None:
    suite = made("suite")
    protocol = suite["$defs"]["Protocol"]
    assert protocol["description"] == "How it is measured."
    assert protocol["properties"]["passes"]["description"] == "trips over all conditions."
    server = suite["$defs"]["Server"]["properties"]
    assert server["cache_type_v"]["description"] == server["cache_type_k"]["description"]
    assert suite["properties"]["vary"]["properties"]["parallel"]["description"] == server["parallel"]["description"]
    undescribed = [
        f"{part}.{key}"
        for part in ("Server", "Request", "Draft", "Protocol", "Require", "GateLimits")
        for key, field in suite["$defs"][part]["properties"].items()
        if "description" not in field
    ]
    assert undescribed == []
