"""The things that are measured and kept, as frozen objects.

Pure data: no I/O here. `store.py` writes and reads them. All times named `*_mono` are seconds of
one monotonic clock of the machine and boot that measured them; `*_utc` are labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

SCHEMA_VERSION = 1

PREFILL_TOKENS = 1
"""Length of the answers of a window that is all prompt. llama-server gives one token even where none is asked for; it takes it from
the last step of the prompt, so that nothing is decoded for it."""

PROMPT_ROUNDS = 4
"""Rounds for which distinct prompts are made; after that they come round again, which an unused cache cannot notice."""

Scope = Literal["chip", "gpu", "gpu+chip", "board", "wall"]
Kind = Literal["instant", "interval_mean", "moving_average", "counter"]
Basis = Literal["measured", "estimated", "synthetic", "transcribed", "transferred", "placeholder"]
Outcome = Literal["measured", "flagged", "void"]
Role = Literal["measured", "control", "length", "prefill", "bridge", "idle_before", "load_step", "idle_after"]
"""What a window is for: `length` has another answer length than the table's, `prefill` answers of one token, `bridge` repeats one after an interruption."""

OF_TABLE: tuple[Role, ...] = ("measured", "prefill")
"""Windows that give figures of the table by themselves, so that what is known against one of them is known against its condition."""

Condition = Mapping[str, Any]
"""One point of what varies, by axis name: `{"parallel": 8}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """One physical thing a meter reads.

    Attributes:
        name: unique within the meter, for example `cpu`.
        scope: what the energy is said to cover.
        covers: the parts really read, for example `("cpu", "gpu")`; only equal `covers` are compared.
        kind: how a reading relates to time.
        basis: where the number comes from.
        unit: the unit of the field as the source gives it, before conversion to W or J.
        source: the exact file, call or field that is read.
        averaging_s: length of the averaging the source itself applies, when known.
        refresh_s: the source's nominal refresh period, when known.
        limit_w: the highest plausible power, when the source states one.
        wrap_j: the energy at which a counter returns to zero, when it does.
        calibration: stated relative calibration error (0.02 is 2 %), when known.
        role: `counted` rails make up the energy; a `check` rail reads the same thing by another route and is
            only compared with it.
    """

    name: str
    scope: Scope
    covers: tuple[str, ...]
    kind: Kind
    basis: Basis
    unit: str
    source: str
    averaging_s: float | None = None
    refresh_s: float | None = None
    limit_w: float | None = None
    wrap_j: float | None = None
    calibration: float | None = None
    role: Literal["counted", "check"] = "counted"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one rail: watts, or joules when the rail is a counter."""

    rail: str
    mono: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One validity check on a window or a run, and what it found.

    Attributes:
        value: what was seen; `None` when there was nothing to see.
        limit: what was allowed, as a person would say it.
        remedy: what to do about it.
    """

    name: str
    outcome: Literal["pass", "flag", "void", "not evaluable"]
    value: float | str | None
    limit: str
    remedy: str = ""

    def __str__(self) -> str:
        shown = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        text = f"{self.name}: {shown} (limit: {self.limit})"
        return f"{text}; {self.remedy}" if self.remedy else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What the answer to a question of a graded set came to.

    Attributes:
        question: its id in the set.
        extracted: what was taken for the answer, cut short; `None` where nothing could be, which is wrong.
        cut_off: it reached the most tokens it might have, and was graded as far as it went.
        text: all that was said. In a run it is empty and stands in the file of answers beside it.
    """

    question: str
    correct: bool
    extracted: str | None = None
    cut_off: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One answered request, as the engine counted it. Times named `sent`, `first` and `received` are seconds from the window's start.

    Attributes:
        slot: which of the requests in flight it was; in a closed loop the worker that sent it.
        round: number of its round; in a closed loop how many that worker had sent before.
        first_token_s: when its first token arrived; `None` unless the answer was streamed.
        inter_token_median_s, inter_token_p99_s: of the times from one token to the next as they arrived, the median, and the time that
            99 of 100 do not exceed; `None` unless the answer was streamed and had two tokens or more.
        grade: of an answer to a question; `None` of any other.
    """

    slot: int
    round: int
    sent_s: float
    received_s: float
    prompt_n: int
    cache_n: int
    predicted_n: int
    prompt_ms: float | None
    predicted_ms: float | None
    stop_type: str | None
    truncated: bool = False
    draft_n: int = 0
    draft_accepted_n: int = 0
    counted_from: str = "timings"
    first_token_s: float | None = None
    inter_token_median_s: float | None = None
    inter_token_p99_s: float | None = None
    grade: Grade | None = None

    def later(self, offset_s: float) -> RequestRecord:
        """The same request with its times counted from a moment `offset_s` earlier: a round's times as those of its window."""
        first = self.first_token_s
        return replace(
            self,
            sent_s=round(self.sent_s + offset_s, 6),
            received_s=round(self.received_s + offset_s, 6),
            first_token_s=None if first is None else round(first + offset_s, 6),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RailEnergy:
    """Energy of one rail over one window.

    Attributes:
        energy_j: `None` when it could not be determined; `reason` says why.
        uncertainty_j: 95 % half-width from edges, refresh, scatter, quantisation and stated calibration.
        updates: distinct sensor updates inside the window.
        refresh_s: the sensor's true refresh period as inferred from its updates.
        longest_gap_s: longest time without a sample over the window and its edges.
        flags: what was mended or suspicious in the samples (duplicates dropped, outliers removed, ...).
        calibration_j: the part of `uncertainty_j` that is the stated calibration error, alike in every window.
        remedy: what to do about `reason`, where it is known.
    """

    rail: str
    energy_j: float | None
    uncertainty_j: float
    updates: int
    refresh_s: float | None
    longest_gap_s: float
    reason: str = ""
    flags: tuple[str, ...] = ()
    calibration_j: float = 0.0
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalSummary:
    """Temperature, clock or another sign of the machine's state over a stretch of time.

    Attributes:
        readings: how many there are in it.
        first, last, lowest, highest, mean: of the numbers; of words, of 1 where any was true and 0 where none was, so that
            `mean` is a share of the readings.
        increase: by how much a counter rose, `None` for other kinds. One that fell was reset or went round, and what it
            rose before and after is added up: never too much.
        seen: the words that were true, or the names of the programs that ran, at any reading.
    """

    name: str
    what: str
    kind: str
    unit: str
    source: str
    readings: int
    first: float
    last: float
    lowest: float
    highest: float
    mean: float
    increase: float | None = None
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One measured run of one condition: from the first request sent to the last answer received.

    Attributes:
        answer_tokens: length asked of each answer; of answers to questions the most that was allowed.
        uncertainty_j: half-width of the energy from everything known about the meter and the edges.
        calibration_j: the part of it that is alike in every window of the run and cancels in their ratios.
    """

    condition: Condition
    pass_index: int
    sequence: int
    role: Role
    outcome: Outcome
    started_utc: str
    start_mono: float
    end_mono: float
    tokens: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    slots: int = 1
    rounds: int = 0
    energy_j: float | None = None
    uncertainty_j: float = 0.0
    calibration_j: float = 0.0
    rails: tuple[RailEnergy, ...] = ()
    gates: tuple[Gate, ...] = ()
    requests: tuple[RequestRecord, ...] = ()
    vitals: tuple[VitalSummary, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def window_s(self) -> float:
        """Length of the window in seconds."""
        return self.end_mono - self.start_mono

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the window is void or flagged: its failure, then the gates that made it so."""
        worst = "void" if self.outcome == "void" else "flag"
        by_gate = [str(g) for g in self.gates if g.outcome == worst]
        return (self.failure, *by_gate) if self.failure else tuple(by_gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How evenly a meter was read over a whole run.

    Attributes:
        readings: rounds of readings.
        interval_s: median time between two of them.
        late_95_s, late_worst_s: how much later than that the 95th of 100 and the worst came.
        missed: readings that would have fitted into the gaps.
    """

    readings: int
    interval_s: float
    late_95_s: float
    late_worst_s: float
    missed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterRecord:
    """The meter a run used and how it was chosen.

    Attributes:
        lags_s: measured delay of each rail behind the chip, by which its readings were moved back.
        sampling: how evenly each source was read, by its name.
    """

    name: str
    basis: Basis
    scope: Scope
    covers: tuple[str, ...]
    rate_hz: float
    rails: tuple[Rail, ...]
    chosen_because: str
    notes: tuple[str, ...] = ()
    lags_s: Mapping[str, float] = field(default_factory=dict)
    sampling: Mapping[str, Sampling] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleBaseline:
    """Power with the server loaded and silent: mean and standard deviation of 1 s (or refresh) means."""

    mean_w: float
    sd_w: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCell:
    """One condition of a run that somebody else measured and published as a table.

    Attributes:
        figures: by metric, exactly as printed.
        roundings: half a unit of each figure's last printed digit, in the figure's own unit.
        spreads: (max - min) / mean over the passes by metric, as printed.
        missing: by metric, why it has no figure, or one that must not be read.
        change: of energy per token against the first condition, as printed.
        gates: what the published numbers let be checked.
    """

    condition: Condition
    figures: Mapping[str, float] = field(default_factory=dict)
    roundings: Mapping[str, float] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    change: str = ""
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One suite measured once on one machine. Holds the measurement alone, no verdict.

    Attributes:
        published: instead of windows, the table of a run that was published; its basis is `transcribed`.
        questions: name, file, digest and size of each set of questions that was asked.
        answers_file: beside the run, with what was answered to them in full.
    """

    run_id: str
    started_utc: str
    finished_utc: str
    complete: bool
    suite: Mapping[str, Any]
    suite_name: str
    axes: tuple[str, ...]
    conditions: tuple[Condition, ...]
    passes: int
    order: str
    machine: Mapping[str, Any]
    machine_slug: str
    models: tuple[Mapping[str, Any], ...]
    engine: Mapping[str, Any]
    meter: MeterRecord
    windows: tuple[Window, ...]
    published: tuple[PublishedCell, ...] = ()
    idle: IdleBaseline | None = None
    gates: tuple[Gate, ...] = ()
    deviations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    samples_file: str = ""
    questions: tuple[Mapping[str, Any], ...] = ()
    answers_file: str = ""
    schema_version: int = SCHEMA_VERSION

    def includes(self, engine: str) -> tuple[str, ...]:
        """What the windows of one of its engines hold, such as `prefill` and `decode`; empty where the run does not state it."""
        facts = self.engine.get(engine)
        return tuple(map(str, facts.get("includes", ()))) if isinstance(facts, Mapping) else ()


def model_text(model: Mapping[str, Any]) -> str:
    """A model of a run: `qwen2.5-7b-instruct q4_0`, or the file that was used in its place."""
    asked = f"{model.get('name', 'unnamed')} {model.get('format') or ''}".strip()
    return f"{model.get('path')} in place of {asked}" if model.get("substitute") else asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The figures of a metric at one condition between which a claim holds, all else being as measured."""

    metric: str
    condition: Condition
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a prediction was found to be on one run.

    Attributes:
        word: `held`, `refuted`, `void`, `broken` or `unmeasured`.
        robustness: `clear`, `narrow`, or empty where it does not apply.
        agreement: share of perturbed tables that give the same verdict, when they were drawn.
        registration: `registered`, `registered, deviated`, `exploratory`, `after-data`, `unknown`, `unavailable` or
            `as published`.
        remark: what the author says of the claim, such as that its threshold was chosen after the data.
        published: what the claim was found to be where it was published.
        of_record: run and word of the first complete run that was not void, where this is a later one of the same prediction.
        changed: what it was found to be on this run before a file that it rests on was changed.
        replayed: judged on a stored run.
        margin: distance to the threshold of the comparison that decides, as a share of it; positive on the asserted side.
        compared: that comparison with its numbers.
        primary: the claim that its module stands or falls with.
        blobs: git blob id of every file of the prediction's closure, by repository path.
        asserted: the text of the prediction, without its docstring.
        commit, committed: the last commit that touched any file of its closure, and that commit's date as git gives it, a label.
        band: where the claim holds between two figures of one condition, these.
    """

    prediction: str
    claim: str
    word: Literal["held", "refuted", "void", "broken", "unmeasured"]
    detail: str = ""
    robustness: Literal["clear", "narrow", ""] = ""
    agreement: float | None = None
    why_narrow: str = ""
    registration: str = ""
    registration_detail: str = ""
    run_id: str = ""
    against_run_id: str = ""
    judged_utc: str = ""
    selected: bool = True
    remark: str = ""
    published: str = ""
    of_record: str = ""
    changed: str = ""
    replayed: bool = False
    margin: float | None = None
    compared: str = ""
    primary: bool = False
    blobs: Mapping[str, str] = field(default_factory=dict)
    asserted: str = ""
    commit: str = ""
    committed: str = ""
    band: Band | None = None

    @property
    def told(self) -> str:
        """`held (narrow)`: the word, and how surely where that applies."""
        return f"{self.word} ({self.robustness})" if self.robustness else self.word
