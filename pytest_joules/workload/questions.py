"""Sets of questions with known answers: read from files, checked line by line, drawn and put into words."""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_joules.errors import UsageError
from pytest_joules.suite import CLOSED_LOOP_ROUNDS, Request, Setting, Suite
from pytest_joules.sweep import label
from pytest_joules.words import nearest, one_line
from pytest_joules.workload.grading import LETTERS, Kind, grade, number

FOLDER = "questions"
"""Beside the suites."""

_SHIPPED = [folder / "suites" / FOLDER for folder in Path(__file__).parents[1:3]]
"""In an installed package, and in its repository."""

_KINDS: tuple[Kind, ...] = ("choice", "numeric", "exact")
_KEYS = ("id", "kind", "question", "choices", "answer", "category")
_MMLU_COLUMNS = 6
_ASKED: Mapping[Kind, str] = {
    "choice": "Answer with the letter of the right choice.",
    "numeric": "End with the result as a number.",
    "exact": "Answer with nothing but the word.",
}
"""What follows a question, so that its answer can be told from the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        id: unique in its set.
        choices: of the kind `choice`, two to ten of them; empty else.
        answer: of a choice its letter.
        category: what it is about; may be empty.
    """

    id: str
    kind: Kind
    question: str
    answer: str
    choices: tuple[str, ...] = ()
    category: str = ""

    @property
    def text(self) -> str:
        """As it is asked."""
        listed = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, self.choices, strict=False)]
        return "\n".join([self.question, *listed, _ASKED[self.kind]])


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSet:
    """The questions of a file.

    Attributes:
        name: as the suite has it.
        sha256: of the file.
    """

    name: str
    path: Path
    sha256: str
    questions: tuple[Question, ...]

    def drawn(self, setting: Setting) -> tuple[Question, ...]:
        """The questions of a condition: the first `questions_count` after a shuffle by the protocol's seed."""
        shuffled = list(self.questions)
        random.Random(setting.protocol.seed).shuffle(shuffled)
        return tuple(shuffled[: setting.request.questions_count])

    def record(self) -> dict[str, Any]:
        """For the run: what was asked, without a path."""
        return {"name": self.name, "file": self.path.name, "sha256": self.sha256, "questions": len(self.questions)}


def sets(suite: Suite) -> dict[tuple[str, str], QuestionSet]:
    """Every question set that a suite's conditions ask, by name and format; none of a suite without questions.

    Raises:
        UsageError: one is not there, cannot be read, or has too few questions for the slots of a condition.
    """
    found: dict[tuple[str, str], QuestionSet] = {}
    for condition in suite.conditions:
        setting = suite.setting(condition)
        request = setting.request
        if request.questions is None:
            continue
        key = request.questions, request.questions_format
        if key not in found:
            found[key] = load(request, suite)
        _check_count(found[key], setting, suite, label(condition))
    return found


def of(setting: Setting, known: Mapping[tuple[str, str], QuestionSet]) -> tuple[Question, ...]:
    """The questions of a condition; none where it has none."""
    request = setting.request
    return () if request.questions is None else known[request.questions, request.questions_format].drawn(setting)


def own_files(suite: Suite, root: Path) -> list[Path]:
    """The files of a suite's questions that lie in the project; one that is not there is told of where it is read."""
    found = []
    for condition in suite.conditions:
        request = suite.setting(condition).request
        if request.questions is not None:
            with contextlib.suppress(UsageError):
                found.append(place(request, suite))
    return [path for path in dict.fromkeys(found) if path.resolve().is_relative_to(root.resolve())]


def _check_count(found: QuestionSet, setting: Setting, suite: Suite, where: str) -> None:
    needed, there = CLOSED_LOOP_ROUNDS * setting.server.parallel, len(found.questions)
    asked = setting.request.questions_count
    if asked is not None and asked > there:
        raise UsageError(
            f"suite {suite.name}: request.questions_count: {asked} questions are asked for, {found.name} has {there}; lower it or leave it out"
        )
    if (count := there if asked is None else asked) < needed:
        has = f"the set {found.name} has {there}" if asked is None else f"questions_count asks {count}"
        raise UsageError(
            f"suite {suite.name}: {where or 'the only condition'} needs {needed} questions for {setting.server.parallel} slots, "
            f"{CLOSED_LOOP_ROUNDS} each so that the end of the loop weighs little; {has}: "
            f"{'bring a larger set' if asked is None else 'raise it'} or lower parallel"
        )


def place(request: Request, suite: Suite) -> Path:
    """The file of a suite's questions: NAME.jsonl in `questions/` beside the suite or with the package, or a path as seen from the suite.

    Raises:
        UsageError: there is none.
    """
    named = str(request.questions)
    beside = suite.files[0].parent if suite.files else Path()
    if "/" in named or "\\" in named or Path(named).suffix:
        path = beside / Path(named).expanduser()
        if path.is_file():
            return path
        raise UsageError(
            f"suite {suite.name}: request.questions: there is no file {named}, as seen from {beside.name or 'here'}/; give its path"
        )
    if request.questions_format != "jsonl":
        raise UsageError(
            f"suite {suite.name}: request.questions: {named} is no path; sets in the format {request.questions_format} do not come with "
            "the package: give the path of the file"
        )
    known = {
        file.stem: file for folder in (*_SHIPPED[::-1], beside / FOLDER) for file in sorted(folder.glob("*.jsonl"))
    }
    if named not in known:
        raise UsageError(
            f"suite {suite.name}: request.questions: there is no question set {named!r}{nearest(named, known)}; "
            f"there are {', '.join(sorted(known)) or 'none'}; or give the path of a file"
        )
    return known[named]


def load(request: Request, suite: Suite) -> QuestionSet:
    """The questions that a suite's requests ask.

    Raises:
        UsageError: the file is not there, or a line of it is no question; with file and line, the thing and the next step.
    """
    path = place(request, suite)
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path.name}: cannot be read as questions: {one_line(str(error))}; give a file of UTF-8 text"
        ) from None
    formats: dict[str, Callable[[str, str], Iterator[tuple[int, Question]]]] = {
        "jsonl": _own,
        "gsm8k": _gsm8k,
        "mmlu": functools.partial(_mmlu, category=path.stem),
    }
    questions: list[Question] = []
    lines: dict[str, int] = {}
    for line, question in formats[request.questions_format](path.name, text):
        if question.id in lines:
            raise UsageError(
                f"{path.name}:{line}: id {question.id!r} is also that of line {lines[question.id]}; give each question one of its own"
            )
        lines[question.id] = line
        questions.append(question)
    if not questions:
        raise UsageError(f"{path.name}: holds no questions; write one JSON object a line")
    return QuestionSet(
        name=str(request.questions), path=path, sha256=hashlib.sha256(raw).hexdigest(), questions=tuple(questions)
    )


def _objects(name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON object of each line, with its number; empty lines are passed over."""
    # Not splitlines(): characters that end a line there stand unescaped in JSON.
    for number_, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{name}:{number_}: this is no JSON: {one_line(str(error), 120)}; write one object a line"
            ) from None
        if not isinstance(record, dict):
            raise UsageError(
                f'{name}:{number_}: expected an object such as {{"id": ..., "question": ...}}, not {one_line(line, 40)}'
            )
        yield number_, record


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key stands twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return made


def _own(name: str, text: str) -> Iterator[tuple[int, Question]]:
    asked: dict[str, tuple[int, Question]] = {}
    for line, record in _objects(name, text):
        here = f"{name}:{line}"
        for key in record:
            if key not in _KEYS:
                raise UsageError(f"{here}: there is no key {key!r}{nearest(key, _KEYS)}; known: {', '.join(_KEYS)}")
        words = {key: _words(record, key, here) for key in ("id", "kind", "question")}
        if words["kind"] not in _KINDS:
            raise UsageError(
                f"{here}: kind {words['kind']!r}{nearest(words['kind'], _KINDS)}; it is one of {', '.join(_KINDS)}"
            )
        kind: Kind = next(known for known in _KINDS if known == words["kind"])
        category = record.get("category", "")
        if not isinstance(category, str):
            raise UsageError(f"{here}: category is {category!r}; give a text or leave it out")
        question = _checked(here, Question(
            id=words["id"], kind=kind, question=words["question"], answer=_answer(record, kind, here),
            choices=_choices(record, kind, here), category=category,
        ))  # fmt: skip
        first_line, first = asked.setdefault(question.text, (line, question))
        if not grade(kind, question.answer, first.answer, question.choices)[1]:
            raise UsageError(
                f"{here}: the question is that of line {first_line}, where its answer is {one_line(first.answer, 40)!r} "
                f"and not {one_line(question.answer, 40)!r}; remove one"
            )
        yield line, question


def _words(record: Mapping[str, Any], key: str, here: str, wanted: str = "a text") -> str:
    """A text that has to be there."""
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        what = "is missing" if value is None else f"is {one_line(repr(value), 40)}"
        raise UsageError(f"{here}: {key} {what}; give {wanted}")
    return value.strip()


def _answer(record: Mapping[str, Any], kind: Kind, here: str) -> str:
    """The answer, which may be written as a number."""
    value = record.get("answer")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value)
    return _words(record, "answer", here, "a number" if kind == "numeric" else "a text")


def _choices(record: Mapping[str, Any], kind: Kind, here: str) -> tuple[str, ...]:
    choices = record.get("choices")
    if kind != "choice":
        if choices is not None:
            raise UsageError(
                f"{here}: choices stand at a question of the kind {kind}; take them away, or make it a choice"
            )
        return ()
    if (
        not isinstance(choices, list)
        or not 2 <= len(choices) <= len(LETTERS)
        or not all(isinstance(c, str) and c.strip() for c in choices)
    ):
        raise UsageError(
            f"{here}: choices of the kind choice: expected a list of 2 to {len(LETTERS)} texts, not {one_line(repr(choices), 60)}"
        )
    found = tuple(choice.strip() for choice in choices)
    if len(set(found)) < len(found):
        raise UsageError(f"{here}: a choice stands there twice; make them differ")
    return found


def _checked(here: str, question: Question) -> Question:
    """A question whose answer can be given."""
    if question.kind == "choice":
        letters = LETTERS[: len(question.choices)]
        if len(question.answer) != 1 or question.answer not in letters:
            raise UsageError(
                f"{here}: answer {one_line(question.answer, 40)!r} is none of the letters {', '.join(letters)}; give the letter of the right choice"
            )
    if question.kind == "numeric" and number(question.answer) is None:
        raise UsageError(
            f"{here}: answer {one_line(question.answer, 40)!r} is no number; write it as 1234.5 or 3/4, or take the kind exact"
        )
    taken, right = grade(question.kind, question.answer, question.answer, question.choices)
    if not right:
        raise UsageError(
            f"{here}: answer {one_line(question.answer, 40)!r} would be wrong itself: "
            f"{'nothing can be' if taken is None else f'{taken!r} is'} taken from it; give one line of letters or digits, without is, are or a colon"
        )
    return question


def _gsm8k(name: str, text: str) -> Iterator[tuple[int, Question]]:
    """GSM8K's lines: `question`, and `answer` with the result behind `####`."""
    for line, record in _objects(name, text):
        here = f"{name}:{line}"
        question, (_, mark, result) = (
            _words(record, "question", here),
            _words(record, "answer", here).rpartition("####"),
        )
        if not mark:
            raise UsageError(
                f"{here}: answer has no result behind '####'; this is no line of GSM8K: check questions_format"
            )
        yield (
            line,
            _checked(
                here, Question(id=f"{line}", kind="numeric", question=question, answer=result.strip(), category="gsm8k")
            ),
        )


def _mmlu(name: str, text: str, category: str) -> Iterator[tuple[int, Question]]:
    """MMLU's rows without a heading: question, four choices, the letter of the right one."""
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for row in rows:
            here, following = f"{name}:{line}", rows.line_num + 1
            if row:
                if len(row) != _MMLU_COLUMNS:
                    raise UsageError(
                        f"{here}: {len(row)} columns where MMLU has {_MMLU_COLUMNS} (question, four choices, letter); check questions_format"
                    )
                asked, *choices, answer = (re.sub(r"[ \t]+", " ", cell).strip() for cell in row)
                if not asked:
                    raise UsageError(f"{here}: the question is empty; fill it in or take the row away")
                yield line, _checked(here, Question(
                    id=f"{category}-{line}", kind="choice", question=asked, choices=tuple(choices), answer=answer, category=category,
                ))  # fmt: skip
            line = following
    except csv.Error as error:
        raise UsageError(f"{name}:{rows.line_num}: this is no CSV: {error}; check questions_format") from None
