"""What is run: a YAML suite file read into frozen objects, every error with file, line, key and the nearest valid name.

The loader follows the YAML 1.2 core schema, so that `off` is a word, `1e3` a number and `1:30` a text; keys may not repeat.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pytest_joules.errors import UsageError
from pytest_joules.gates import RUN_ORDER_ABOVE
from pytest_joules.metrics import OF_DRAFTS
from pytest_joules.records import PREFILL_TOKENS, Condition, Scope
from pytest_joules.schedule import Order
from pytest_joules.words import nearest, one_line

Positive = Annotated[int, Field(gt=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]

DEFAULT_ENGINE = "llama-server"

CONTEXT_SPARE = 1
"""llama-server calls an answer truncated that fills the context of its slot to the last token."""

SHORTEST_PROMPT = 8
"""Prompts of a stated length have at least so many tokens: what makes them differ must fit into them."""

CLOSED_LOOP_ROUNDS = 8
"""So many requests for each slot at least, so that the end of a closed loop, where slots fall idle, weighs little."""

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How the engine is started. Every value is passed explicitly and read back where the engine can be asked.

    Attributes:
        parallel: requests served at once (slots).
        context_per_slot: tokens of context of each slot.
        threads: CPU threads; left out, one per physical core, which is recorded.
        gpu_layers: layers on the GPU, or `all`.
        flash_attention: whether the engine uses it.
        cache_type_k, cache_type_v: number format of the KV cache.
        batch_tokens: logical batch size of a decode step.
        ubatch_tokens: its physical batch size.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    parallel: Positive = 1
    context_per_slot: Positive = 1024
    threads: Positive | None = None
    gpu_layers: Annotated[int, Field(ge=0)] | Literal["all"] = "all"
    flash_attention: Literal["on", "off", "auto"] = "auto"
    cache_type_k: Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"] = "f16"
    cache_type_v: Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"] = "f16"
    batch_tokens: Positive = 2048
    ubatch_tokens: Positive = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What each request asks.

    Attributes:
        prompt: the name of a prompt that comes with the package.
        prompt_text: a text of the suite's own, in place of `prompt`.
        prompt_tokens: exact length of each prompt in the model's own tokens, in place of `prompt`: plain text that comes with the
            package, no two prompts alike from their first token on.
        shared_prefix_tokens: so many tokens at their start are the same in all prompts of `prompt_tokens`. With `cache_prompt: true`
            each slot holds them before the window begins, and exactly they must come from the cache.
        questions: a set of questions whose answers are graded, in place of a prompt: `NAME` of `questions/NAME.jsonl` beside the suite or
            of a set that comes with the package, or the path of a file as seen from the suite. Such requests go out in a closed loop.
        questions_format: of that file: our own, or that of GSM8K or MMLU as they are published.
        questions_count: ask so many of them, drawn by `protocol.seed`; left out, all.
        identical: all requests of a round send the same prompt; otherwise distinct prompts of equal length.
        answer_tokens: exact length of each answer; of questions the most it may have, since the model ends it by itself.
        lengths: further answer lengths that are measured at each condition, so that the energy of a generated token
            comes apart from that of the prompt.
        prefill_windows: at each condition a window of answers of one token is measured too. A server takes that token from the last step
            of the prompt, so that the energy of a prompt token, and the prompt's share of a request, can be told.
        temperature: 0 is greedy.
        seed: for sampling above temperature 0.
        cache_prompt: let the engine reuse a prompt it has seen; then the answers must show that it did. Only for prompts that begin
            alike: with `identical`, `shared_prefix_tokens` or `questions`.
        stream: have the tokens sent one by one, so that the time to the first one and between them is known. It keeps this
            program awake while the engine works; otherwise it sleeps until the answers are there.
        closed_loop: keep a request in flight for each of the N slots, the next one sent the moment one is answered, instead of rounds
            in which all wait for the slowest. Only for 8 N prompts or more: at the end the slots run empty one after the other.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    prompt: Literal["short", "code"] = "short"
    prompt_text: Name | None = None
    prompt_tokens: Annotated[int, Field(ge=SHORTEST_PROMPT)] | None = None
    shared_prefix_tokens: Annotated[int, Field(ge=0)] = 0
    questions: Name | None = None
    questions_format: Literal["jsonl", "gsm8k", "mmlu"] = "jsonl"
    questions_count: Positive | None = None
    identical: bool = False
    answer_tokens: Positive = 128
    lengths: tuple[Positive, ...] = ()
    prefill_windows: bool = False
    temperature: Annotated[float, Field(ge=0)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 1
    cache_prompt: bool = False
    stream: bool = False
    closed_loop: bool = False

    @property
    def loops(self) -> bool:
        """Requests follow each other slot by slot: asked for, or because answers to questions are not equally long."""
        return self.closed_loop or self.questions is not None

    @property
    def cached_by_count(self) -> bool:
        """How many tokens of each prompt come from the cache is stated, so that every slot must hold them before a window begins."""
        return self.cache_prompt and self.prompt_tokens is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Speculative decoding with a draft model.

    Attributes:
        draft_model, draft_format: looked up like `model` and `format`.
        draft_tokens_max: most tokens drafted per step.
        draft_tokens_min: least tokens drafted per step, no more than that.
        draft_threshold: least probability at which drafting goes on; `off` drafts nothing and loads no draft model, so that both can be
            conditions of one suite.
        draft_synthetic_tokens: tokens that a pass over the model's weights is made to yield on average, its own one among them, whatever
            was drafted: for energy against acceptance alone. One more than `draft_tokens_max` is the most. The answers then mean nothing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    draft_model: Name | None = None
    draft_format: Name | None = None
    draft_tokens_max: Positive = 3
    draft_tokens_min: Annotated[int, Field(ge=0)] = 0
    draft_threshold: Share | Literal["off"] = 0.0
    draft_synthetic_tokens: Annotated[float, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How it is measured.

    Attributes:
        warmup_s: seconds of work at the condition's own batch before its window, on the same server; 30 unless `warmup_tokens`
            is given.
        warmup_tokens: instead of `warmup_s`, one round of answers of this many tokens.
        warm: `cold` leaves the warm-up out and lets the machine rest instead, with the server loaded and silent, so that
            the window is the first work it does.
        rest_s: how long it rests before a cold window.
        rounds: rounds of N requests in a window, or how often a set of questions is asked; left out, they are repeated until
            `min_window_s`.
        min_window_s: shortest window where `rounds` is not given.
        passes: trips over all conditions.
        order: of the conditions in each pass. With F for the suite's order and R for the same turned round: `balanced`
            draws an order for each pair of passes and turns the second of the pair round, `reversed` is F R F R, `abba` is
            F R R F, `interleaved` takes the rows of a Williams square and after each the same turned round, so that every
            condition comes to stand at every place and after every other one, `as_given` is F F F F.
        control: measure the first condition once more at the end of each pass; the default does so with `balanced`,
            `abba` and `interleaved`.
        idle_s: seconds of idle power with a server loaded and silent, before and after; 0 leaves it out.
        rate_hz: how often the meter is read.
        ready_timeout_s: longest time a server may take to load.
        request_timeout_s: longest time one request may take.
        seed: of the drawn orders, and of the questions drawn from a set.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    warmup_s: Annotated[float, Field(ge=0)] | None = None
    warmup_tokens: Positive | None = None
    warm: Literal["warm", "cold"] = "warm"
    rest_s: Annotated[float, Field(ge=0)] = 60.0
    rounds: Positive | None = None
    min_window_s: PositiveSeconds = 10.0
    passes: Positive = 4
    order: Order = "balanced"
    control: bool | None = None
    idle_s: Annotated[float, Field(ge=0)] = 10.0
    rate_hz: Annotated[float, Field(gt=0, le=100)] = 5.0
    ready_timeout_s: PositiveSeconds = 600.0
    request_timeout_s: PositiveSeconds = 3600.0
    seed: int = 1

    DEFAULT_WARMUP_S: ClassVar[float] = 30.0

    @property
    def warmup_seconds(self) -> float:
        """Seconds of warm-up; 0 when it is given in tokens."""
        if self.warmup_tokens is not None:
            return 0.0
        return self.DEFAULT_WARMUP_S if self.warmup_s is None else self.warmup_s

    @property
    def control_repeat(self) -> bool:
        """The control repeat is absent from the published, reversed protocol, and from the suite's own order."""
        return self.order not in ("reversed", "as_given") if self.control is None else self.control


@dataclass(frozen=True, slots=True, kw_only=True)
class Require:
    """What a machine must offer for the suite to be measured there.

    Attributes:
        scope: what the energy must cover; `any` takes the best source of the machine.
        basis: `measured` skips the suite on a machine without a sensor, `any` lets it be estimated there.
        min_samples: sensor updates that a window must have.
        thin: what becomes of a window with fewer.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    scope: Scope | Literal["any"] = "any"
    basis: Literal["measured", "any"] = "measured"
    min_samples: Positive = 5
    thin: Literal["flag", "void"] = "void"

    @property
    def wanted_scope(self) -> Scope | None:
        """The scope, or `None` for any."""
        return None if self.scope == "any" else self.scope


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """Thresholds of the gates, as shares unless the name has a unit. A looser one is printed beside the verdict.

    Attributes:
        batch_void_below, batch_flag_below: slots really busy in a decode step, of those asked for.
        thin_samples: sensor updates below which a window is called thin.
        uncertainty_void_above, uncertainty_flag_above: of the energy, from edges, refresh and lag.
        counter_flag_above, counter_void_above: between an energy counter and the power beside it.
        spread_flag_above: of the passes of a condition, of a control repeat from its condition, and of a bridge from what it repeats.
        rest_flag_above: of the power at the end of a rest above the idle baseline.
        client_cpu_flag_above: CPU time of this program, of all that was spent in the window.
        other_load_flag_above: CPU time of other programs, as a share of one core.
        other_load_void_above: the same as a share of all cores. At a quarter of the machine the engine's threads are held up
            as well, and the figures are wrong by factors; a suite whose work is all on a GPU may allow more.
        drift_flag_above: change of energy per token from the first window to the last, if it is beyond chance.
        run_order_flag_above: difference between earlier and later passes.
        power_slope_flag_above: change of power within a window.
        temperature_rise_flag_above_c: within a window, in kelvin.
        power_limit_flag_above: share of a window's time that power stands at the machine's limit.
        intercept_flag_above: energy beside the answers' tokens, as a share of the energy at the shortest answers.
        swapped_flag_above_mib: memory moved to and from the disk in a window. Pages of sleeping programs come and go all
            the time; a model that does not fit moves hundreds of MiB.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    batch_void_below: Share = 0.8
    batch_flag_below: Share = 0.95
    thin_samples: Positive = 10
    uncertainty_void_above: Annotated[float, Field(gt=0)] = 0.25
    uncertainty_flag_above: Annotated[float, Field(gt=0)] = 0.05
    counter_flag_above: Annotated[float, Field(gt=0)] = 0.05
    counter_void_above: Annotated[float, Field(gt=0)] = 0.25
    spread_flag_above: Annotated[float, Field(gt=0)] = 0.05
    rest_flag_above: Annotated[float, Field(gt=0)] = 0.05
    client_cpu_flag_above: Annotated[float, Field(gt=0)] = 0.02
    other_load_flag_above: Annotated[float, Field(gt=0)] = 0.10
    other_load_void_above: Annotated[float, Field(gt=0)] = 0.25
    drift_flag_above: Annotated[float, Field(gt=0)] = 0.02
    run_order_flag_above: Annotated[float, Field(gt=0)] = RUN_ORDER_ABOVE
    power_slope_flag_above: Annotated[float, Field(gt=0)] = 0.02
    temperature_rise_flag_above_c: Annotated[float, Field(gt=0)] = 3.0
    power_limit_flag_above: Annotated[float, Field(gt=0, le=1)] = 0.5
    intercept_flag_above: Annotated[float, Field(gt=0)] = 0.10
    swapped_flag_above_mib: Annotated[float, Field(ge=0)] = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One condition resolved: everything an engine needs to know to run it."""

    engine: str
    model: str
    format: str | None
    server: Server
    request: Request
    draft: Draft
    knobs: Mapping[str, Any]
    protocol: Protocol = Protocol()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite file, valid as a whole.

    Attributes:
        name: the file's name without its ending.
        question: what the suite is to answer, the first line of its note.
        model: a model's name, or the path of a .gguf file.
        format: the number format of its weights, as file names have it.
        engine: what runs the model.
        vary: values by axis, in the file's order; several axes make a grid.
        server, request, draft, protocol, require, gates: sections.
        knobs: machine settings by knob name.
        files: the suite file and the files it extends, nearest first.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: str
    question: Name
    model: Name | None = None
    format: Name | None = None
    engine: Name = DEFAULT_ENGINE
    vary: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    server: Server = Server()
    request: Request = Request()
    draft: Draft = Draft()
    knobs: Mapping[str, Any] = field(default_factory=dict)
    protocol: Protocol = Protocol()
    require: Require = Require()
    gates: GateLimits = GateLimits()
    files: tuple[Path, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of what varies."""
        return tuple(self.vary)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Every point of the grid, the last axis fastest."""
        return tuple(dict(zip(self.vary, values, strict=True)) for values in itertools.product(*self.vary.values()))

    @property
    def undefined(self) -> Mapping[str, str]:
        """Metrics that nothing will be measured for, each with what to ask for instead."""
        graded = self.request.questions is not None or "questions" in self.vary
        drafts = self.draft.draft_model is not None or "draft_model" in self.vary
        prefills = self.request.prefill_windows or "prefill_windows" in self.vary
        one_token = PREFILL_TOKENS in self.vary.get("answer_tokens", (self.request.answer_tokens,))
        wanted = {
            **dict.fromkeys(
                ("energy_per_prompt_token_mj", "prompt_tokens_per_s"),
                (prefills or one_token, "state request.prefill_windows: true"),
            ),
            "prefill_share": (prefills, "state request.prefill_windows: true"),
            **dict.fromkeys(
                ("energy_per_correct_j", "accuracy", "correct", "answered"), (graded, "state request.questions")
            ),
            "decode_energy_per_token_mj": (self.request.lengths, "state request.lengths"),
            "time_to_first_token_s": (self.request.stream or "stream" in self.vary, "state request.stream: true"),
            "inter_token_s": (self.request.stream or "stream" in self.vary, "state request.stream: true"),
            "net_energy_per_token_mj": (self.protocol.idle_s, "state protocol.idle_s"),
            "idle_power_w": (self.protocol.idle_s, "state protocol.idle_s"),
            **dict.fromkeys(OF_DRAFTS, (drafts, "state draft.draft_model")),
        }
        return {
            metric: f"the suite does not measure it; {hint}" for metric, (asked, hint) in wanted.items() if not asked
        }

    def setting(self, condition: Condition) -> Setting:
        """The condition's values put in place of the suite's own."""
        parts: dict[str, dict[str, Any]] = {section: {} for section in ("", *_SECTIONS, "knobs")}
        for axis, value in condition.items():
            parts[_section_of(axis)].update(dict.fromkeys(keys_of(axis), value))
        model = parts[""].get("model", self.model)
        if model is None:
            raise UsageError(f"suite {self.name}: no model is named")
        draft = dataclasses.replace(self.draft, **parts["draft"])
        return Setting(
            engine=parts[""].get("engine", self.engine),
            model=model,
            format=parts[""].get("format", self.format),
            server=dataclasses.replace(self.server, **parts["server"]),
            request=dataclasses.replace(self.request, **parts["request"]),
            draft=Draft() if draft.draft_threshold == "off" else draft,
            knobs={**self.knobs, **parts["knobs"]},
            protocol=dataclasses.replace(self.protocol, **parts["protocol"]),
        )

    def record(self) -> dict[str, Any]:
        """The suite as plain JSON values, without paths."""
        plain = dataclasses.asdict(self)
        plain["files"] = [path.name for path in self.files]
        plain["vary"] = {axis: list(values) for axis, values in self.vary.items()}
        plain["request"]["lengths"] = list(self.request.lengths)
        return plain


_SECTIONS = {"server": Server, "request": Request, "draft": Draft, "protocol": Protocol}
_TOP_AXES = ("model", "format", "engine")
_TOGETHER: Mapping[str, tuple[str, ...]] = {"cache_type": ("cache_type_k", "cache_type_v")}
"""Axes that set several keys of `server` to the same value, which separate axes would cross."""
_PROTOCOL_AXES = ("warm", "warmup_s", "warmup_tokens", "rest_s")
"""The part of the protocol that may vary: how a window is come to. The rest is the same for a whole run."""


def _fields(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


def keys_of(axis: str) -> tuple[str, ...]:
    """The keys that an axis sets: its own name, or all that it sets together."""
    return _TOGETHER.get(axis, (axis,))


def _section_of(axis: str) -> str:
    """The section an axis name belongs to: a key of `_SECTIONS`, `` for the suite itself, else `knobs`."""
    if axis in _TOP_AXES:
        return ""
    return next((section for section, cls in _SECTIONS.items() if keys_of(axis)[0] in _fields(cls)), "knobs")


def axis_sections(knobs: Sequence[str]) -> dict[str, str]:
    """Every name that `vary` takes, with the section it belongs to; an empty name is the suite itself."""
    names = (*_TOP_AXES, *_fields(Server), *_TOGETHER, *_fields(Request), *_fields(Draft), *_PROTOCOL_AXES, *knobs)
    return {name: _section_of(name) for name in names}


def find(name: str, near: Path, root: Path) -> Path:
    """The file of a suite: `suites/<name>.yaml` in `near` or any folder above it up to `root`.

    Raises:
        UsageError: there is none; the nearest name that exists is given.
    """
    folders = [folder for folder in (near, *near.parents) if folder == root or root in folder.parents] or [root]
    places = [folder / "suites" for folder in dict.fromkeys((*folders, root))]
    known: dict[str, Path] = {}
    for place in reversed(places):
        known |= _suites_in(place)
    if name in known:
        return known[name]
    hint = nearest(name, known) or (
        f"; there are {', '.join(sorted(known))}" if known else f"; there is no suite in {places[-1]}"
    )
    raise UsageError(f"there is no suite {name!r}{hint}")


def _suites_in(folder: Path) -> dict[str, Path]:
    return {path.stem: path for ending in ("yml", "yaml") for path in folder.glob(f"*.{ending}") if path.is_file()}


def load(path: Path, knobs: Sequence[str] = (), engines: Sequence[str] = ()) -> Suite:
    """Read and check a suite file and all it extends.

    Args:
        path: the YAML file.
        knobs: names of the machine knobs that exist.
        engines: names of the engines that exist; without any, every name is taken.

    Raises:
        UsageError: one line for every fault, with file, line, key, what was expected and the nearest valid name.
    """
    document = read(path)
    faults = [*_check_names(document, knobs)]
    suite = None if faults else _build(document, faults)
    if faults or suite is None:
        raise UsageError("\n".join(faults))
    faults = [*_check_engines(suite, document, engines), *_check_sense(suite, document)]
    if faults:
        raise UsageError("\n".join(faults))
    return suite


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML mapping with where each of its values stands, by the keys and places in lists that lead to it."""

    data: dict[str, Any]
    places: Mapping[tuple[str | int, ...], str]
    files: tuple[Path, ...]

    def place(self, path: Sequence[str | int]) -> str:
        """`suites/x.yaml:12` of the value, or of the nearest thing around it that has a place."""
        for length in range(len(path), -1, -1):
            if (found := self.places.get(tuple(path[:length]))) is not None:
                return found
        return str(self.files[0])


class _Loader(yaml.SafeLoader):
    """Leaves it to `_scalar` what a scalar is, so that a tag on a node is one that somebody wrote."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """No tag."""
        return ""


def mapping_of(path: Path, what: str) -> tuple[dict[str, Any], dict[tuple[str | int, ...], str]]:
    """What a YAML file holds, and `file:12` of every value by its way: strict YAML 1.2 scalars, no key twice, no tags.

    Args:
        what: what the file has to be, where it is no mapping.

    Raises:
        UsageError: it cannot be read, or is not so.
    """
    shown = _shown(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{shown}: cannot be read: {error}") from None
    try:
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        position = getattr(error, "position", None)
        line = mark.line if mark else 0 if position is None else text.count("\n", 0, position)
        problem = one_line(str(getattr(error, "problem", None) or error))
        raise UsageError(f"{shown}:{line + 1}: this is no YAML: {problem}") from None
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{shown}:1: {what}")
    places: dict[tuple[str | int, ...], str] = {}
    return _plain(node, (), shown, places, ()), places


def read(
    path: Path, kind: str = "suite", least: str = "question, model and vary", seen: tuple[Path, ...] = ()
) -> Document:
    """A YAML file of a kind, laid over the one beside it that it `extends`.

    Args:
        least: what such a file has at least, for whoever has to be told.
        seen: the files that extend it.

    Raises:
        UsageError: it cannot be read, is no YAML or no mapping, or extends what is not there.
    """
    data, places = mapping_of(path, f"a {kind} is a mapping with at least {least}")
    if "extends" not in data:
        return Document(data, places, (path,))
    parent_name, place = data.pop("extends"), places["extends",]
    if not isinstance(parent_name, str):
        raise UsageError(f"{place}: extends: expected the name of one other {kind}, not {parent_name!r}")
    known = _suites_in(path.parent)
    parent = known.get(parent_name.removesuffix(".yaml").removesuffix(".yml"))
    if parent is None:
        raise UsageError(
            f"{place}: extends: there is no {kind} {parent_name!r} beside this one{nearest(parent_name, known)}"
        )
    if parent in (*seen, path):
        way = " -> ".join(p.stem for p in (*seen, path, parent))
        raise UsageError(f"{place}: extends: {parent.stem} extends itself ({way}); remove one of them")
    above = read(parent, kind, least, (*seen, path))
    return Document(_merged(above.data, data), {**above.places, **places}, (path, *above.files))


def _shown(path: Path) -> str:
    """The path as a person would type it: relative to where they are when it lies below."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def _scalar(node: yaml.ScalarNode) -> Any:
    """A scalar by the YAML 1.2 core schema; quoted ones stay text."""
    text = str(node.value)
    if node.style is not None:
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        # In YAML 1.2 a leading zero is decimal, which int(text, 0) would refuse.
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _value(node: yaml.ScalarNode, here: str, path: Sequence[str | int]) -> Any:
    """A scalar that a result can keep; `.nan`, `1e999`, half a surrogate pair or a number of 5,000 digits are none."""
    try:
        value = _scalar(node)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        key = ".".join(str(part) for part in path if not isinstance(part, int)) or "a key"
        shown = one_line(repr(node.value), 40)
        raise UsageError(f"{here}: {key}: expected a finite number or a text, not {shown}") from None
    return value


def _plain(
    node: yaml.Node,
    path: tuple[str | int, ...],
    shown: str,
    places: dict[tuple[str | int, ...], str],
    around: tuple[int, ...],
) -> Any:
    """Plain values of a node; fills `places`. Raises `UsageError` for repeated keys and tags."""
    places.setdefault(path, f"{shown}:{node.start_mark.line + 1}")
    here = f"{shown}:{node.start_mark.line + 1}"
    if id(node) in around:
        raise UsageError(f"{here}: an alias points to what holds it")
    if node.tag:
        raise UsageError(f"{here}: no tag is known; here stands {node.tag}")
    if isinstance(node, yaml.ScalarNode):
        return _value(node, here, path)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child, (*path, i), shown, places, (*around, id(node))) for i, child in enumerate(node.value)]
    plain: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = f"{shown}:{key_node.start_mark.line + 1}"
        key = _value(key_node, line, path) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            shown_key = repr(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
            raise UsageError(f"{line}: a key is a name, not {shown_key}")
        if key in plain:
            raise UsageError(f"{line}: {key!r} stands here a second time; the first is at {places[(*path, key)]}")
        places[(*path, key)] = line
        plain[key] = _plain(value_node, (*path, key), shown, places, (*around, id(node)))
    return plain


def _merged(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """The child's keys over the parent's, section by section; `vary` is replaced as a whole."""
    merged = dict(parent)
    for key, value in child.items():
        both = isinstance(value, dict) and isinstance(parent.get(key), dict) and key != "vary"
        merged[key] = _merged(parent[key], value) if both else value
    return merged


_OWN_KEYS = (
    "question",
    "model",
    "format",
    "engine",
    "vary",
    "server",
    "request",
    "draft",
    "knobs",
    "protocol",
    "require",
    "gates",
)


def _check_names(document: Document, knobs: Sequence[str]) -> Iterator[str]:
    data = document.data
    sections: dict[str, Sequence[str]] = {
        **{name: _fields(cls) for name, cls in _SECTIONS.items()},
        "require": _fields(Require),
        "gates": _fields(GateLimits),
        "knobs": knobs,
    }
    axes = tuple(axis_sections(knobs))

    def unknown(key: str, path: tuple[str, ...], known: Sequence[str], what: str) -> str:
        return (
            f"{document.place(path)}: {'.'.join(path)}: there is no {what} {key!r}{nearest(key, known)}; "
            f"known: {', '.join(known) or 'none'}"
        )

    for key in data:
        if key not in _OWN_KEYS:
            yield unknown(key, (key,), (*_OWN_KEYS, "extends"), "key")
    for section, known in sections.items():
        if section not in data:
            continue
        if not isinstance(data[section], dict):
            yield f"{document.place((section,))}: {section}: expected a mapping of {', '.join(known)}"
            continue
        for key in data[section]:
            if key not in known:
                yield unknown(key, (section, key), known, f"{section} key")
    vary = data.get("vary", {})
    if not isinstance(vary, dict):
        yield f"{document.place(('vary',))}: vary: expected a mapping such as {{parallel: [1, 2, 4]}}"
        return
    for axis, values in vary.items():
        path = ("vary", axis)
        if axis not in axes:
            yield unknown(axis, path, axes, "thing to vary called")
            continue
        if not isinstance(values, list) or not values:
            yield f"{document.place(path)}: vary.{axis}: expected a list of values"
            continue
        for index, value in enumerate(values):
            if isinstance(value, list | dict):
                yield f"{document.place((*path, index))}: vary.{axis}: expected single values, not {value!r}"
            elif value in values[:index]:
                yield f"{document.place((*path, index))}: vary.{axis}: {value!r} stands there twice"
        section = _section_of(axis)
        around = data.get(section) if section else data
        for key in keys_of(axis):
            if key != axis and key in vary:
                yield f"{document.place(path)}: vary.{axis}: it sets {key}, which varies at {document.place(('vary', key))}; remove one"
            if not isinstance(around, dict) or key not in around:
                continue
            fixed = f"{section}.{key}" if section else key
            yield f"{document.place(path)}: {axis} varies and is also fixed by {fixed} at {document.place(fixed.split('.'))}; remove one"


def _build(document: Document, faults: list[str]) -> Suite | None:
    data = {**document.data, "name": document.files[0].stem}
    suite = _validated(Suite, data, document, (), faults)
    for axis, values in document.data.get("vary", {}).items():
        section = _section_of(axis)
        for index, value in enumerate(values):
            path = ("vary", axis, index)
            if section in _SECTIONS:
                _validated(_SECTIONS[section], {keys_of(axis)[0]: value}, document, path, faults)
            elif section == "" and not (isinstance(value, str) and value):
                faults.append(f"{document.place(path)}: vary.{axis}: expected a name, not {value!r}")
    return None if suite is None else dataclasses.replace(suite, files=document.files)


@functools.cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _validated(
    cls: type, data: Mapping[str, Any], document: Document, at: tuple[str | int, ...], faults: list[str]
) -> Any:
    """An instance of `cls`, or `None` and the faults appended.

    The values take the way through JSON because pydantic's strict mode then accepts mappings for dataclasses and lists
    for tuples, while `"8"` is still no number.
    """
    try:
        return _adapter(cls).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        # A value that fits none of several types gives one error for each of them.
        expected: dict[tuple[str | int, ...], list[Any]] = {}
        for item in error.errors():
            path = at or tuple(
                part for part in item["loc"] if part in (*_OWN_KEYS, *_all_fields()) or isinstance(part, int)
            )
            expected.setdefault(path, []).append(item)
        for path, items in expected.items():
            if items[0]["type"] == "missing":
                faults.append(f"{document.place(path[:-1])}: {items[0]['loc'][-1]} is missing")
                continue
            key = ".".join(str(part) for part in path if not isinstance(part, int)) or "suite"
            value = items[0]["input"]
            words = " or ".join(dict.fromkeys(_expected(item) for item in items))
            hint = nearest(value, re.findall(r"'([^']+)'", words)) if isinstance(value, str) else ""
            fault = f"{document.place(path)}: {key}: {words}, not {value!r}{hint}"
            if fault not in faults:
                faults.append(fault)
        return None


def _all_fields() -> tuple[str, ...]:
    return tuple(
        itertools.chain.from_iterable(_fields(c) for c in (Server, Request, Draft, Protocol, Require, GateLimits))
    )


def _expected(item: Any) -> str:
    return str(item["msg"]).removeprefix("Input ")


def _check_engines(suite: Suite, document: Document, engines: Sequence[str]) -> Iterator[str]:
    named: list[tuple[tuple[str | int, ...], str]] = [
        (("vary", "engine", i), name) for i, name in enumerate(suite.vary.get("engine", ()))
    ]
    named += [] if "engine" in suite.vary else [(("engine",), suite.engine)]
    for path, name in named if engines else ():
        if name not in engines:
            key = ".".join(str(part) for part in path if not isinstance(part, int))
            known = ", ".join(sorted(engines))
            yield f"{document.place(path)}: {key}: there is no engine {name!r}{nearest(name, engines)}; known: {known}"


def _check_sense(suite: Suite, document: Document) -> Iterator[str]:
    """Faults that no single key shows."""
    if suite.model is None and "model" not in suite.vary:
        yield f"{document.place(())}: model is missing: name one, or vary it"
        return
    protocol = suite.protocol
    warmups = [suite.setting(condition).protocol for condition in suite.conditions]
    if any(p.warmup_s is not None and p.warmup_tokens is not None for p in warmups):
        yield f"{document.place(('protocol', 'warmup_tokens'))}: warmup_s and warmup_tokens: give one of them"
    if all(p.warm == "cold" for p in warmups) and (protocol.warmup_s is not None or protocol.warmup_tokens is not None):
        yield f"{document.place(('protocol', 'warm'))}: protocol.warm: a cold window has no warm-up; remove warmup_s and warmup_tokens, or warm: cold"
    for key in ("lengths", "prefill_windows"):
        if any(p.warm == "cold" for p in warmups) and getattr(suite.request, key):
            yield f"{document.place(('request', key))}: request.{key}: only the first window of a server is cold; remove one of them"
    yield from _check_questions(suite, document)
    yield from _check_prompts(suite, document)
    requests = [suite.setting(condition).request for condition in suite.conditions]
    closed = any(request.closed_loop and request.questions is None for request in requests)
    if closed and protocol.rounds is not None and protocol.rounds < CLOSED_LOOP_ROUNDS:
        yield (
            f"{document.place(('protocol', 'rounds'))}: protocol.rounds: a closed loop sends at least {CLOSED_LOOP_ROUNDS} "
            "requests to each slot, so that its end weighs little; raise it or leave it out"
        )
    gates = suite.gates
    if gates.batch_flag_below < gates.batch_void_below:
        yield f"{document.place(('gates',))}: gates: batch_flag_below must not be under batch_void_below"
    for name, flag, void in (
        ("uncertainty", gates.uncertainty_flag_above, gates.uncertainty_void_above),
        ("counter", gates.counter_flag_above, gates.counter_void_above),
    ):
        if flag > void:
            yield f"{document.place(('gates',))}: gates: {name}_flag_above must not be over {name}_void_above"
    if suite.draft.draft_model is None and "draft_model" not in suite.vary:
        idle: list[tuple[str, ...]] = [("vary", axis) for axis in suite.vary if _section_of(axis) == "draft"]
        if suite.draft != Draft():
            idle.append(("draft",))
        for path in idle:
            yield f"{document.place(path)}: {'.'.join(path)}: it has no effect without draft_model; name one"
    if suite.request.questions is not None or "questions" in suite.vary:
        key = "draft_synthetic_tokens"
        for section in [s for s in ("draft", "vary") if document.data.get(s, {}).get(key) is not None]:
            yield f"{document.place((section, key))}: {section}.{key}: the answers then mean nothing and cannot be graded; remove it, or questions"
    for condition in suite.conditions:
        setting = suite.setting(condition)
        request = setting.request
        longest = max(request.answer_tokens, *(request.lengths or (0,)))
        shown = ", ".join(f"{k}={v}" for k, v in condition.items()) or "the suite"
        needed = (request.prompt_tokens or 0) + longest + CONTEXT_SPARE
        if request.prompt_tokens is not None and needed > setting.server.context_per_slot > longest:
            section = "vary" if "prompt_tokens" in suite.vary else "request"
            yield (
                f"{document.place((section, 'prompt_tokens'))}: {section}.prompt_tokens: a prompt of {request.prompt_tokens} tokens and "
                f"{longest} of its answer need {needed} tokens of context at {shown}, context_per_slot is "
                f"{setting.server.context_per_slot}; raise it to {needed} or more"
            )
            return
        if longest >= setting.server.context_per_slot:
            section = "vary" if "answer_tokens" in suite.vary else "request"
            yield (
                f"{document.place((section, 'answer_tokens'))}: {section}.answer_tokens: {longest} does not fit into "
                f"context_per_slot {setting.server.context_per_slot} at {shown}; raise context_per_slot"
            )
            return


def _check_questions(suite: Suite, document: Document) -> Iterator[str]:
    """Keys that have no meaning beside questions, or none without them."""
    asked, varied = suite.request.questions, "questions" in suite.vary
    usual = Request()
    if asked is None and not varied:
        for key in ("questions_format", "questions_count"):
            if getattr(suite.request, key) != getattr(usual, key) or key in suite.vary:
                section = "vary" if key in suite.vary else "request"
                yield f"{document.place((section, key))}: {section}.{key}: it has no effect without questions; name a set"
        return
    for key in (
        "prompt", "prompt_text", "prompt_tokens", "shared_prefix_tokens", "identical", "lengths", "prefill_windows",
    ):  # fmt: skip
        if getattr(suite.request, key) != getattr(usual, key) or key in suite.vary:
            section = "vary" if key in suite.vary else "request"
            yield f"{document.place((section, key))}: {section}.{key}: it has no meaning beside questions; remove one of them"


_FLOATING = frozenset({"f32", "f16", "bf16"})
"""Formats of the KV cache that are not quantised."""


def _check_prompts(suite: Suite, document: Document) -> Iterator[str]:
    """What is asked of prompts, of the cache that holds them, and of drafts; each fault once."""
    told: set[str] = set()
    for condition in suite.conditions:
        setting = suite.setting(condition)
        faults = [*_prompt_faults(setting, suite.vary), *_draft_faults(setting.draft)]
        for key, fault in faults:
            if key in told:
                continue
            told.add(key)
            section = "vary" if key in suite.vary else _section_of(key)
            shown = ", ".join(f"{axis}={value}" for axis, value in condition.items())
            yield f"{document.place((section, key))}: {section}.{key}: {fault}{f' (at {shown})' if shown else ''}"


def _prompt_faults(setting: Setting, varied: Container[str]) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, each with why and what to do.

    Args:
        varied: names of the suite's axes.
    """
    request, server = setting.request, setting.server
    length, shared = request.prompt_tokens, request.shared_prefix_tokens
    if length is None and shared:
        yield "shared_prefix_tokens", "it is a part of prompts of a stated length; state prompt_tokens"
    if request.prompt != Request().prompt and request.questions is None:
        for key in ("prompt_text", "prompt_tokens"):
            if getattr(request, key) is not None:
                yield "prompt", f"{key} takes its place; remove one of them"
    if length is not None and request.prompt_text is not None:
        yield "prompt_text", "prompts of prompt_tokens have a text of their own; remove one of them"
    if length is not None and shared >= length:
        yield (
            "shared_prefix_tokens",
            f"{shared} is no part of a prompt of {length} tokens: at least its last token is its own; lower it",
        )
    if shared and request.identical:
        yield "identical", "identical prompts share all their tokens; remove it, or shared_prefix_tokens"
    alike = request.identical or request.questions is not None or shared or "shared_prefix_tokens" in varied
    if request.cache_prompt and not alike:
        yield (
            "cache_prompt",
            "no two of these prompts begin alike, so that nothing of them is in the cache; state prompt_tokens and shared_prefix_tokens, "
            "or identical: true",
        )
    if request.cached_by_count and setting.protocol.warm == "cold":
        yield "cache_prompt", "a cold server has no prompt in its cache; leave out warm: cold, or cache_prompt"
    if request.prefill_windows and request.answer_tokens == PREFILL_TOKENS:
        yield "prefill_windows", "answers of one token are prefill alone already; remove it, or raise answer_tokens"
    if request.prefill_windows and PREFILL_TOKENS in request.lengths:
        yield "lengths", "answers of one token are what prefill_windows measures; leave 1 out"
    if server.flash_attention == "off" and server.cache_type_v not in _FLOATING:
        yield "flash_attention", f"a V cache of {server.cache_type_v} needs it; set it to on or auto"


def _draft_faults(draft: Draft) -> Iterator[tuple[str, str]]:
    """Numbers of drafted tokens that cannot be, each with why and what to do."""
    most = draft.draft_tokens_max
    if draft.draft_tokens_min > most:
        yield "draft_tokens_min", f"{draft.draft_tokens_min} is over draft_tokens_max, {most}; lower it, or raise that"
    made = draft.draft_synthetic_tokens
    if made is not None and made > most + 1:
        yield (
            "draft_synthetic_tokens",
            f"a pass yields {most + 1} tokens at most, draft_tokens_max and its own one; lower it, or raise that",
        )
