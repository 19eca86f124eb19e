"""The note as Markdown and as a page: what stands in it, and that nothing in it can be more than text."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pytest_joules.note import plots
from pytest_joules.note.document import Document, document, stem
from pytest_joules.note.markdown import escaped, fenced, markdown, table
from pytest_joules.note.page import html
from pytest_joules.records import Band, Run, Sample, Verdict

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> {{ 7 * 7 }} $x_1$ | `a` ``` </svg> [l](javascript:alert(3))"


@pytest.fixture
def run(make_run, make_window) -> Run:
    windows = [
        make_window(n, p, energy_j=joules, start_mono=100.0 + 20 * p + 50 * n, end_mono=110.0 + 20 * p + 50 * n)
        for p in (0, 1)
        for n, joules in ((1, 137.0), (8, 280.0))
    ]
    suite = {
        "question": "Where does it stop falling?",
        "model": "made-up-7b",
        "vary": {"parallel": [1, 8]},
        "server": {"context_per_slot": 1024},
        "request": {"prompt": "short", "identical": True, "answer_tokens": 128, "temperature": 0.0},
        "protocol": {"warmup_tokens": 16, "rounds": 1},
    }
    return make_run(
        *windows, suite=suite, provenance={"head": "c0ffee" * 6 + "c0ff"}, deviations=("format: q4_k_m for q4_0",)
    )


@pytest.fixture
def samples(run: Run) -> list[Sample]:
    return [
        Sample("chip.energy", w.start_mono + 0.2 * step, 14.0 * 0.2 * step)
        for w in run.windows
        for step in range(-2, 54)
    ]


def given(**changes: object) -> Verdict:
    usual: dict[str, object] = {
        "prediction": "predictions/test_x.py::test_y", "claim": "Eight are cheaper than one.", "word": "held", "robustness": "clear",
        "registration": "registered", "commit": "ab" * 20, "committed": "2026-10-24T12:00:00+00:00", "compared": "273 against 1070, 74% inside",
        "asserted": "energy = sweep.energy_per_token_mj\nassert energy[8] < energy[1]",
    }  # fmt: skip
    return Verdict(**(usual | changes))


def note_of(
    run: Run, *verdicts: Verdict, samples: list[Sample] | tuple[()] = (), attempts: tuple[str, ...] = ()
) -> Document:
    return document(
        run, verdicts, plots.figures(run, verdicts, samples) if samples else [], attempts, ["machine/made-up/run.json"]
    )


def test_the_answer_is_one_sentence_made_from_the_verdicts_and_the_minimum(run: Run) -> None:
    note = note_of(
        run, given(), given(prediction="t.py::b", word="refuted", robustness="narrow", detail="assert 2 < 1")
    )
    assert note.answer == (
        "1 of 2 predictions held, 1 was refuted (1 narrowly); energy per token is lowest at batch 8, 273 mJ, 74% less than at 1."
    )


def test_the_primary_claim_leads_the_answer_and_the_list(run: Run) -> None:
    note = note_of(run, given(), given(prediction="t.py::b", claim="It is flat.", word="refuted", primary=True))
    assert note.answer.startswith(
        "The primary claim was refuted (clear): It is flat; 1 of 2 predictions held, 1 was refuted;"
    )
    assert note.claims[0].primary


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("exploratory",), "none of them registered"),
        (("registered", "after-data"), "1 of them registered"),
        (("registered", "registered, deviated"), None),
        (("as published",), None),
    ],
)
def test_the_answer_says_how_many_were_registered_unless_all_were(
    run: Run, words: tuple[str, ...], said: str | None
) -> None:
    answer = note_of(run, *(given(prediction=f"t.py::{w}", registration=w) for w in words)).answer
    assert said in answer if said else "registered" not in answer


def test_without_verdicts_the_note_says_so(run: Run) -> None:
    note = note_of(run)
    assert note.answer.startswith("No prediction was judged on this run;")
    assert "No prediction was judged on this run." in markdown(note)
    assert "No prediction was judged on this run." in html(note)


def test_a_claim_is_told_with_its_text_its_commit_and_why_it_is_narrow(run: Run) -> None:
    (claim,) = note_of(
        run, given(robustness="narrow", why_narrow="one pass", remark="threshold chosen after the data")
    ).claims
    assert claim.asserted.endswith("assert energy[8] < energy[1]")
    assert claim.made == "registered, in commit abababababab dated 2026-10-24T12:00:00+00:00 (predictions/test_x.py)"
    assert claim.because == ("273 against 1070, 74% inside", "narrow: one pass", "threshold chosen after the data")


def test_the_commit_of_a_transcription_is_not_given_out_as_when_it_was_said(run: Run) -> None:
    (claim,) = note_of(run, given(registration="as published", published="held")).claims
    assert claim.made == "as published (predictions/test_x.py)"
    assert "published: held" in claim.because


def test_the_method_is_of_this_run(run: Run) -> None:
    method = "\n".join(note_of(run).method)
    assert (
        "For each of batch 1, 8, in each pass, llama-server is started anew, with 1,024 tokens of context for each slot."
        in method
    )
    assert "warmed with one round of answers of 16 tokens" in method
    assert (
        "identical prompts (short), each to be answered with exactly 128 tokens, greedy, 1 round a window: windows of 10.0 s"
        in method
    )
    assert "2 passes, every second pass in reverse order" in method


def test_what_a_run_does_not_hold_is_not_filled_in(run: Run) -> None:
    bare = replace(run, suite={"question": "Why?"}, windows=())
    method = "\n".join(note_of(bare).method)
    assert "How it was warmed is not in the run." in method
    assert "None" not in method


def test_limits_name_the_scope_what_no_rail_covers_and_the_one_prompt(run: Run) -> None:
    note = note_of(run)
    assert note.limits[:3] == (
        "scope: energy of the chip alone (cpu), not of the wall",
        "no rail covers gpu, dram",
        "one prompt and one answer length (128 tokens); longer contexts read more of the KV cache at each step",
    )
    assert note.deviations == ("format: q4_k_m for q4_0",)
    assert not any("deviation" in limit for limit in note.limits)


def test_the_commands_judge_again_before_they_go_back_in_history(run: Run) -> None:
    lines = note_of(run, given()).reproduce
    assert lines.index(f"joules replay {run.run_id}") < lines.index(f"git checkout {run.provenance['head']}")
    assert lines[-1] == "pytest predictions/test_x.py --joules-meter chip"


def test_markdown_has_all_parts_in_order(run: Run, samples: list[Sample]) -> None:
    text = markdown(
        note_of(run, given(), samples=samples, attempts=("20260101T000000Z-aaaaaa (made-up): cut short",)),
        images="pics",
    )
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles == [
        "Results", "Predictions", "Findings", "Method, as run", "Power in every window", "Deviations", "Limits",
        "Other attempts at these data", "Reproduce", "Raw data",
    ]  # fmt: skip
    assert "](pics/energy.svg)" in text
    assert "](pics/trace-2.svg)" in text
    assert "| 273 |" in re.sub(r" +", " ", text)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_no_text_of_a_run_becomes_markup_in_the_page(run: Run, samples: list[Sample]) -> None:
    hostile = replace(
        run,
        suite={**run.suite, "question": HOSTILE, "request": {"prompt_text": HOSTILE, "answer_tokens": 1}},
        axes=("model",),
        conditions=({"model": HOSTILE}, {"model": "b"}),
        windows=tuple(
            replace(w, condition={"model": HOSTILE if w.condition["parallel"] == 1 else "b"}) for w in run.windows
        ),
        models=({"name": HOSTILE, "format": HOSTILE, "sha256": HOSTILE},),
        machine={"chip": HOSTILE, "memory_gb": 1, "os": HOSTILE},
        engine={HOSTILE: {"name": HOSTILE, "build": HOSTILE}},
        notes=(HOSTILE,),
        deviations=(HOSTILE,),
    )
    band = Band(metric="energy_per_token_mj", condition={"model": HOSTILE}, low=1.0, high=2.0)
    verdict = given(
        claim=HOSTILE,
        asserted=HOSTILE,
        remark=HOSTILE,
        prediction=f"{HOSTILE}::x[{HOSTILE}]",
        registration_detail=HOSTILE,
        band=band,
    )
    note = note_of(hostile, verdict, samples=samples, attempts=(HOSTILE,))
    page = _Elements()
    page.feed(html(note))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not [value for name, value in page.attributes if name in ("href", "src") and value]
    assert page.text.count(HOSTILE) >= 6
    assert page.tags.count("svg") == len(note.figures)


def test_no_text_of_a_run_becomes_markup_in_markdown() -> None:
    inert = escaped(HOSTILE)
    assert "<" not in inert
    assert not re.search(r"(?<!\\)[`|\[\]*]", inert)
    assert escaped("a_b.py and _c_") == "a_b.py and \\_c\\_"
    assert escaped("one\n# two") == "one \\# two"


def test_code_cannot_end_its_own_block() -> None:
    assert fenced("a\n````\nb", "python") == ["`````python", "a", "````", "b", "`````"]


def test_a_table_cell_cannot_begin_another() -> None:
    assert table(["a"], [["x|y"]])[-1].count("|") == 3


def test_the_page_stands_alone(run: Run, samples: list[Sample]) -> None:
    page = html(note_of(run, given(), samples=samples))
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "default-src 'none'" in page
    # A number that is the stand-in of a colour would be a colour the reader's theme does not know.
    assert not re.search(r"#0[1-5]0[1-5]0[1-5]|#0a0a0", page)


def test_ids_are_unique_in_a_page(run: Run, samples: list[Sample]) -> None:
    ids = re.findall(r'\bid="([^"]+)"', html(note_of(run, given(), samples=samples)))
    assert ids
    assert len(ids) == len(set(ids))


def test_a_files_name_holds_nothing_but_plain_characters(run: Run) -> None:
    assert stem(replace(run, suite_name="../a b/ü")) == f".._a_b_ü-{run.run_id}"
