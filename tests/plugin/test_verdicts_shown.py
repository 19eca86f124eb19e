"""One run with every kind of verdict in it, and what pytest shows of each."""

import re
import xml.etree.ElementTree as ET

import pytest

PREDICTIONS = """
    def test_two_at_once(sweep):
        \"\"\"Two at once are faster than one.\"\"\"
        assert sweep.tokens_per_s[2] > 1.5 * sweep.tokens_per_s[1]

    def test_one_alone(sweep):
        \"\"\"One alone is the fastest.\"\"\"
        assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]

    def test_four_at_once(sweep):
        \"\"\"Four at once are faster still.\"\"\"
        assert sweep.tokens_per_s[4] > sweep.tokens_per_s[2]

    def test_no_number(sweep):
        \"\"\"A rule with a hole where the answers are.\"\"\"
        assert 100 / (sweep.tokens[1] - 8) < sweep.power_w[1]

    def test_left_out(sweep):
        \"\"\"A claim that nobody wants to hear.\"\"\"
        assert sweep.tokens_per_s[2] < 1
"""

AGAINST = """
    def test_than_the_other(sweep, against):
        \"\"\"Slower than the other suite.\"\"\"
        assert sweep.tokens_per_s[1] < against.tokens_per_s[1]
"""

FALLS_OVER_AT_FOUR = """
    def answering(server):
        if server.slots == 4:
            raise EngineError("the server fell over")
"""


@pytest.fixture(scope="module")
def shown(project_apart):
    """The project after its run, and what was printed."""
    project = project_apart()
    project.suite(vary={"parallel": [1, 2, 4]})
    project.suite("other")
    project.script(FALLS_OVER_AT_FOUR)
    project.predictions(PREDICTIONS)
    project.predictions(AGAINST, '"scripted", against="other"', "test_than_another.py")
    done = project.run_apart("-v", "-k", "not left_out", "-rs", "--junitxml=report.xml", plugins=None)
    return project, done


def test_each_verdict_is_a_word_of_verbose_output(shown) -> None:
    _, done = shown
    lines = [re.sub(r"\s+\[ *\d+%]$", "", line) for line in done.outlines]
    sure = r"\((clear|narrow), unavailable\)"
    for pattern in (
        rf"(test_predictions\.py::test_two_at_once )?HELD {sure}",
        rf"test_predictions\.py::test_one_alone REFUTED {sure}",
        r"test_predictions\.py::test_four_at_once VOID \(unavailable\)",
        r"test_predictions\.py::test_no_number BROKEN \(unavailable\)",
        r"test_than_another\.py::test_than_the_other UNMEASURED \(unmeasured: .*\)",
    ):
        assert [line for line in lines if re.fullmatch(pattern, line)], pattern


def test_counts_and_exit_code_stay_those_of_pytest(shown) -> None:
    _, done = shown
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert done.parseoutcomes() == {"passed": 1, "failed": 1, "errors": 2, "skipped": 1, "deselected": 1}


def test_a_refuted_prediction_shows_both_numbers(shown) -> None:
    _, done = shown
    [numbers] = [m for line in done.outlines if (m := re.fullmatch(r"E +assert (\d+\.\d+) > (\d+\.\d+)", line))]
    assert float(numbers[1]) == pytest.approx(8 / 0.15, rel=0.2)
    assert float(numbers[2]) == pytest.approx(16 / 0.15, rel=0.2)


def test_a_void_cell_says_why_and_a_broken_rule_how(shown) -> None:
    _, done = shown
    done.stdout.fnmatch_lines(
        ["void: parallel=4: pass 1: the server fell over | pass 2: not run again after it failed"]
    )
    done.stdout.fnmatch_lines(["broken: ZeroDivisionError: *"])


def test_an_unmeasured_one_is_a_single_line_with_its_reason(shown) -> None:
    _, done = shown
    [reason] = [line for line in done.outlines if re.match(r"UNMEASURED \[\d", line)]
    assert reason.endswith(
        "unmeasured: no complete run of suite other on this machine (bench); measure that suite first"
    )


def test_the_note_has_heading_table_and_the_place_of_the_result(shown) -> None:
    project, done = shown
    text = "\n".join(done.outlines)
    note = text[text.index("= joules: scripted =") :]
    assert "Does the table tell what the script says?" in note
    assert "llama-server build 4321 (abcdef0). tiny q4_0." in " ".join(note.split())
    assert "Estimated energy of the chip (cpu) by estimate at 20 Hz; 2 passes, order reversed." in " ".join(
        note.split()
    )
    table = [line.split() for line in note.splitlines() if re.match(r" +[124] ", line)]
    assert [row[0] for row in table] == ["1", "2", "4"]
    assert float(table[1][1]) == pytest.approx(2 * float(table[0][1]), rel=0.2)
    assert table[2] == ["4", "void"]
    stored = project.stored()
    assert f"result: {stored.path.relative_to(project.folder)}" in note.splitlines()


def test_every_claim_stands_in_the_note_with_its_verdict(shown) -> None:
    _, done = shown
    text = " ".join(" ".join(done.outlines).split())
    for pattern in (
        r"HELD \(\w+\) \[unavailable]: Two at once are faster than one\.",
        r"REFUTED \(\w+\) \[unavailable]: One alone is the fastest\. assert [\d.]+ > [\d.]+",
        r"VOID \[unavailable]: Four at once are faster still\. parallel=4: pass 1: the server fell over",
        r"BROKEN \[unavailable]: A rule with a hole where the answers are\. ZeroDivisionError",
        r"REFUTED \(\w+\) \[unavailable, deselected]: A claim that nobody wants to hear\.",
        r"UNMEASURED \[unavailable]: Slower than the other suite\. no run of suite other on this machine",
    ):
        assert re.search(pattern, text), pattern


def test_progress_tells_each_window_and_the_time_left(shown) -> None:
    _, done = shown
    told = [line.removeprefix("joules: ") for line in done.outlines if line.startswith("joules: ")]
    assert told[0] == "measuring scripted, 6 windows"
    assert re.fullmatch(r"scripted 1/6: parallel=1, pass 1: [\d.]+ tok/s, [\d.]+ W, about \d+ s left", told[1])
    assert told[3].startswith("scripted 3/6: parallel=4, pass 1: void: the server fell over")
    assert re.fullmatch(r"scripted 6/6: parallel=1, pass 2: [\d.]+ tok/s, [\d.]+ W", told[6])
    assert len(told) == 7


def test_junit_xml_carries_verdict_and_basis(shown) -> None:
    project, _ = shown
    cases = ET.parse(project.folder / "report.xml").iter("testcase")
    found = {case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")} for case in cases}
    assert {name: properties["joules_verdict"] for name, properties in found.items()} == {
        "test_two_at_once": "held",
        "test_one_alone": "refuted",
        "test_four_at_once": "void",
        "test_no_number": "broken",
        "test_than_the_other": "unmeasured",
    }
    assert found["test_two_at_once"]["joules_basis"] == "estimated"
    assert found["test_two_at_once"]["joules_scope"] == "chip"
    assert found["test_two_at_once"]["joules_run"] == project.stored_run().run_id


def test_verdicts_are_kept_also_of_what_was_deselected(shown) -> None:
    project, _ = shown
    verdicts = project.verdicts()
    assert {name: verdict.word for name, verdict in verdicts.items()} == {
        "test_two_at_once": "held",
        "test_one_alone": "refuted",
        "test_four_at_once": "void",
        "test_no_number": "broken",
        "test_left_out": "refuted",
        "test_than_the_other": "unmeasured",
    }
    assert [name for name, verdict in verdicts.items() if not verdict.selected] == ["test_left_out"]


def test_the_void_cell_takes_no_other_with_it(shown) -> None:
    project, _ = shown
    outcomes = {}
    for window in project.stored_run().windows:
        outcomes.setdefault(window.condition["parallel"], set()).add(window.outcome == "void")
    assert outcomes == {1: {False}, 2: {False}, 4: {True}}
    assert project.journals() == []


def test_exit_code_is_zero_when_all_hold(project) -> None:
    project.predictions(
        """
        def test_two_at_once(sweep):
            assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]
        """
    )
    done = project.run()
    assert done.ret == pytest.ExitCode.OK
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["HELD (*) ?unavailable?: two at once"])


def test_without_the_meter_it_needs_all_is_skipped_with_one_reason(project) -> None:
    project.suite(require={"basis": "measured"})
    project.predictions(
        """
        def test_one(sweep):
            assert sweep.power_w[1] < 50

        def test_two(sweep):
            assert sweep.power_w[2] < 50
        """
    )
    done = project.run("-rs")
    assert done.ret == pytest.ExitCode.OK
    done.assert_outcomes(skipped=2)
    [reason] = [line for line in done.outlines if re.match(r"UNMEASURED \[\d", line)]
    assert reason.endswith("unmeasured: meter estimate is estimated; the suite requires a measured source")
    project.assert_untouched()


def test_quiet_says_only_where_the_result_is_and_quieter_nothing(project_apart) -> None:
    project = project_apart()
    project.predictions(
        """
        def test_two_at_once(sweep):
            assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]
        """
    )
    done = project.run("-q")
    dots, where, passed = done.outlines
    assert where == f"joules: scripted: result: results/bench/scripted/{project.stored_run().run_id}.json"
    assert [re.sub(r"in [\d.]+s", "", line).split() for line in (dots, passed)] == [[".", "[100%]"], ["1", "passed"]]
    assert project.verdicts()["test_two_at_once"].word == "held"
    assert not any("joules" in line for line in project.run("-qq").outlines)
