"""Graded questions on the real thing."""

import gzip
import json

import pytest

PREDICTION = """
    import pytest

    pytestmark = pytest.mark.joules("real")

    def test_any(sweep):
        assert sweep.accuracy["llama-server"] < 0.95
"""


def test_both_engines_ask_a_set_in_the_models_template_and_grade_what_it_answers(project) -> None:
    project.suite(
        vary={"engine": ["llama-server", "in-process"]},
        server={"parallel": 2},
        request={"questions": "own", "answer_tokens": 12},
        protocol={"rounds": 1, "min_window_s": None},
    )
    asked = [{"id": f"sum-{n}", "kind": "numeric", "question": f"What is {n} + 1?", "answer": n + 1} for n in range(15)]
    asked.append(
        {"id": "fly", "kind": "choice", "question": "Which can fly?", "choices": ["a cow", "an eagle"], "answer": "B"}
    )
    project.write("suites/questions/own.jsonl", "\n".join(map(json.dumps, asked)))
    project.write("test_real.py", PREDICTION)
    done = project.run("--joules-exploratory")
    assert done.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), done.outlines
    assert any("16 questions resolve a difference in accuracy of about 35 points" in line for line in done.outlines)
    stored = project.stored()
    server, inside = stored.run.windows
    for window in (server, inside):
        assert window.outcome != "void", window.reasons
        assert {request.grade.question for request in window.requests} == {q["id"] for q in asked}
        assert all(0 < request.predicted_n <= 12 for request in window.requests)
        # A model that may end its answer does so now and then.
        assert any(request.stop_type != "limit" for request in window.requests)
        assert all(request.grade.cut_off == (request.stop_type == "limit") for request in window.requests)
        assert 0 <= window.engine["drain_share"] < 1
    # The same words by the same template: token by token, wherever it was applied.
    lengths = [{r.grade.question: r.prompt_n for r in window.requests} for window in (server, inside)]
    assert lengths[0] == lengths[1]
    assert min(lengths[0].values()) > 20
    [line] = [line for line in done.outlines if line.startswith("engine llama-server: ")]
    right = sum(request.grade.correct for request in server.requests)
    assert f"engine llama-server: {right} of 16 right" in line
    with gzip.open(stored.path.with_name(stored.run.answers_file), "rt") as file:
        answers = [json.loads(line) for line in file]
    assert len(answers) == 32
    assert all(isinstance(one["text"], str) for one in answers)
    assert any(one["text"] for one in answers)
    [record] = stored.run.questions
    assert (record["name"], record["questions"]) == ("own", 16)
    assert not project.journal()
