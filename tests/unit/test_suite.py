import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_joules.errors import UsageError
from pytest_joules.suite import Draft, Protocol, Request, Require, Server, Suite, find, load

ROOT = Path(__file__).parents[2]
LEAST = "question: Does it?\nmodel: m\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes suite files below the working directory and returns the first one's path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()

    def _write(text: str, name: str = "s.yaml", **others: str) -> Path:
        for other, content in others.items():
            (tmp_path / "suites" / f"{other}.yaml").write_text(content, encoding="utf-8")
        path = tmp_path / "suites" / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def refusal(path: Path, knobs: tuple[str, ...] = ()) -> str:
    with pytest.raises(UsageError) as caught:
        load(path, knobs)
    return str(caught.value)


def test_the_quickstart_suite() -> None:
    suite = load(ROOT / "suites" / "quickstart.yaml")
    assert suite == Suite(
        name="quickstart",
        question="Does serving several requests at once make a token cheaper on this machine?",
        model="smollm2-135m-instruct",
        format="q4_1",
        vary={"parallel": (1, 2, 4, 8)},
        server=Server(context_per_slot=512),
        request=Request(prompt="short", answer_tokens=64),
        protocol=suite.protocol,
        require=Require(basis="any"),
        files=(ROOT / "suites" / "quickstart.yaml",),
    )
    assert (suite.protocol.passes, suite.protocol.order, suite.protocol.control_repeat) == (2, "reversed", False)
    assert suite.engine == "llama-server"
    assert suite.axes == ("parallel",)


def test_the_published_protocol() -> None:
    suite = load(ROOT / "suites" / "decode-batch.yaml")
    assert (suite.model, suite.format) == ("qwen2.5-7b-instruct", "q4_0")
    assert suite.conditions == tuple({"parallel": n} for n in (1, 2, 4, 8, 16, 32))
    assert suite.server.context_per_slot == 1024
    assert suite.request == Request(prompt="short", identical=True, answer_tokens=128, temperature=0.0)
    assert suite.protocol == Protocol(warmup_tokens=16, rounds=1, passes=2, order="reversed", rate_hz=5)
    assert suite.protocol.warmup_seconds == 0.0
    # Its windows were short: two samples at the smallest batch of the smaller model, which a note may flag and not refuse.
    assert suite.require == Require(scope="chip", basis="measured", min_samples=2, thin="flag")
    assert suite.require.wanted_scope == "chip"


def test_defaults_are_part_of_what_is_registered(write) -> None:
    suite = load(write(LEAST))
    assert suite.conditions == ({},)
    assert (suite.protocol.warmup_seconds, suite.protocol.control_repeat, suite.require.wanted_scope) == (
        30.0,
        True,
        None,
    )
    record = suite.record()
    sections = {
        "server": {
            "parallel": 1, "context_per_slot": 1024, "threads": None, "gpu_layers": "all", "flash_attention": "auto",
            "cache_type_k": "f16", "cache_type_v": "f16", "batch_tokens": 2048, "ubatch_tokens": 512,
        },
        "request": {
            "prompt": "short", "identical": False, "answer_tokens": 128, "temperature": 0.0, "seed": 1, "cache_prompt": False,
        },
        "draft": {"draft_model": None, "draft_format": None, "draft_tokens_max": 3, "draft_tokens_min": 0, "draft_threshold": 0.0},
        "protocol": {
            "warmup_s": None, "warmup_tokens": None, "rounds": None, "min_window_s": 10.0, "passes": 4, "order": "balanced",
            "control": None, "idle_s": 10.0, "rate_hz": 5.0, "ready_timeout_s": 600.0, "request_timeout_s": 3600.0, "seed": 1,
        },
        "require": {"scope": "any", "basis": "measured", "min_samples": 5, "thin": "void"},
        "gates": {
            "batch_void_below": 0.8, "batch_flag_below": 0.95, "thin_samples": 10, "uncertainty_void_above": 0.25,
            "uncertainty_flag_above": 0.05, "spread_flag_above": 0.05, "client_cpu_flag_above": 0.02, "other_load_flag_above": 0.10,
            "other_load_void_above": 0.25, "drift_flag_above": 0.02, "run_order_flag_above": 0.02, "power_slope_flag_above": 0.02,
            "temperature_rise_flag_above_c": 3.0, "power_limit_flag_above": 0.5, "intercept_flag_above": 0.10,
            "swapped_flag_above_mib": 16.0,
        },
    }  # fmt: skip
    for section, defaults in sections.items():
        assert record[section].items() >= defaults.items(), section
    assert (record["name"], record["engine"], record["vary"], record["knobs"], record["files"]) == (
        "s",
        "llama-server",
        {},
        {},
        ["s.yaml"],
    )


@pytest.mark.parametrize(
    ("section", "key", "least", "below"),
    [
        ("server", "parallel", 1, 0), ("server", "gpu_layers", 0, -1), ("request", "temperature", 0, -0.1), ("request", "seed", 0, -1),
        ("protocol", "idle_s", 0, -1), ("protocol", "warmup_s", 0, -1), ("protocol", "passes", 1, 0), ("protocol", "rate_hz", 0.01, 0),
        ("protocol", "min_window_s", 0.01, 0), ("require", "min_samples", 1, 0), ("gates", "spread_flag_above", 0.001, 0),
    ],
)  # fmt: skip
def test_the_least_value_of_a_key(write, section: str, key: str, least: float, below: float) -> None:
    suite = load(write(f"{LEAST}{section}: {{{key}: {least}}}\n"))
    assert getattr(getattr(suite, section), key) == least
    assert f"suites/s.yaml:3: {section}.{key}: should be" in refusal(write(f"{LEAST}{section}: {{{key}: {below}}}\n"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"), ("on", "on"), ("yes", "yes"), ("no", "no"), ("y", "y"), ("true", True), ("FALSE", False), ("tRue", "tRue"),
        ("1e3", 1000.0), ("1E-2", 0.01), (".5", 0.5), ("5.", 5.0), ("-0.5", -0.5), ("1:30", "1:30"), ("190:20:30", "190:20:30"),
        ("010", 10), ("0o10", 8), ("0x1F", 31), ("+7", 7), ("-7", -7), ("1_000", "1_000"), ("0b11", "0b11"),
        ("2026-10-25", "2026-10-25"), ("~", None), ("null", None), ("", None), ("'8'", "8"), ('"1e3"', "1e3"), ("=", "="), ("<<", "<<"),
        ("e5", "e5"), ("1e", "1e"), ("-", None), ("12e03", 12000.0), ("inf", "inf"), ("nan", "nan"),
    ],
)  # fmt: skip
def test_scalars_mean_what_yaml_1_2_says(write, text: str, value: Any) -> None:
    if text == "-":
        # A lone hyphen begins a list, of one empty value.
        value = [None]
    read = load(write(f"{LEAST}knobs:\n  clock:\n    {text}\n"), ("clock",)).knobs["clock"]
    assert (read, type(read)) == (value, type(value))


FAULTS = {
    "unknown key": ("vari: {parallel: [1]}", 3, ["vari", "did you mean 'vary'?"]),
    "unknown server key": ("server:\n  paralel: 2", 4, ["server.paralel", "did you mean 'parallel'?"]),
    "unknown request key": ("request: {promt: short}", 3, ["request.promt", "did you mean 'prompt'?"]),
    "unknown protocol key": ("protocol:\n  passes: 2\n  warmup: 5", 5, ["protocol.warmup", "warmup_s"]),
    "unknown gate": ("gates: {spread_flag: 0.1}", 3, ["gates.spread_flag", "did you mean 'spread_flag_above'?"]),
    "unknown requirement": ("require: {scopes: chip}", 3, ["require.scopes", "did you mean 'scope'?"]),
    "unknown axis": ("vary:\n  parallell: [1]", 4, ["vary.parallell", "did you mean 'parallel'?"]),
    "unknown knob": ("knobs: {clok: 1}", 3, ["knobs.clok", "did you mean 'clock'?"]),
    "text for a number": ("server: {parallel: '8'}", 3, ["server.parallel", "valid integer", "'8'"]),
    "truth for a number": ("server: {parallel: true}", 3, ["server.parallel", "valid integer", "True"]),
    "a share of a slot": ("server: {parallel: 1.5}", 3, ["server.parallel", "valid integer", "1.5"]),
    "an exponent for a count": ("request: {answer_tokens: 1e2}", 3, ["request.answer_tokens", "valid integer", "100.0"]),
    "no slots": ("server: {parallel: 0}", 3, ["server.parallel", "greater than 0"]),
    "yes is a word": ("request: {identical: yes}", 3, ["request.identical", "valid boolean", "'yes'"]),
    "a time is a text": ("protocol: {idle_s: 1:30}", 3, ["protocol.idle_s", "valid number", "'1:30'"]),
    "too fast": ("protocol: {rate_hz: 1e3}", 3, ["protocol.rate_hz", "less than or equal to 100"]),
    "not a number": ("request: {temperature: .nan}", 3, ["request.temperature", "finite", ".nan"]),
    "infinite": ("protocol: {min_window_s: .inf}", 3, ["protocol.min_window_s", "finite"]),
    "as good as infinite": ("protocol: {min_window_s: 1e999}", 3, ["protocol.min_window_s", "finite"]),
    "endless digits": (f"protocol: {{seed: {'9' * 5000}}}", 3, ["protocol.seed", "finite"]),
    "not a number for a knob": ("knobs: {clock: .nan}", 3, ["knobs.clock", "finite"]),
    "not a number among values": ("vary: {clock: [1, .nan]}", 3, ["vary.clock", "finite"]),
    "half a character": ('engine: "\\ud800"', 3, ["engine", "text"]),
    "nearest word of a choice": ("protocol: {order: revresed}", 3, ["protocol.order", "'balanced', 'reversed', 'abba', 'interleaved' or 'as_given'", "did you mean 'reversed'?"]),
    "nearest format of the cache": ("server: {cache_type_k: q8}", 3, ["server.cache_type_k", "did you mean 'q8_0'?"]),
    "one fault for two types": ("server: {gpu_layers: al}", 3, ["server.gpu_layers", "valid integer or should be 'all'", "did you mean 'all'?"]),
    "no such scope": ("require: {scope: chipp}", 3, ["require.scope", "'wall'", "'any'", "did you mean 'chip'?"]),
    "section without content": ("server:", 3, ["server", "expected a mapping of parallel, "]),
    "section as a list": ("protocol: [2]", 3, ["protocol", "expected a mapping of warmup_s, "]),
    "section as a number": ("server: 5\nvary: {parallel: [1]}", 3, ["server", "expected a mapping"]),
    "nothing varies": ("vary:", 3, ["vary", "expected a mapping such as"]),
    "an axis without values": ("vary: {parallel: []}", 3, ["vary.parallel", "expected a list of values"]),
    "an axis with one bare value": ("vary: {parallel: 4}", 3, ["vary.parallel", "expected a list of values"]),
    "a bad value of an axis": ("vary:\n  parallel:\n    - 1\n    - two", 6, ["vary.parallel", "valid integer", "'two'"]),
    "a list among the values": ("vary: {clock: [[1], [2]]}", 3, ["vary.clock", "single values", "[1]"]),
    "a value twice": ("vary:\n  parallel: [1, 2, 1]", 4, ["vary.parallel", "1 stands there twice"]),
    "a model without a name": ("vary: {engine: [llama-server, 5]}", 3, ["vary.engine", "expected a name", "5"]),
    "also fixed in a section": ("server:\n  parallel: 4\nvary: {parallel: [1, 2]}", 5, ["parallel varies", "server.parallel at suites/s.yaml:4"]),
    "also fixed at the top": ("vary: {model: [a, b]}", 3, ["model varies", "model at suites/s.yaml:2"]),
    "also fixed as a knob": ("knobs: {clock: 1}\nvary: {clock: [1, 2]}", 4, ["clock varies", "knobs.clock at suites/s.yaml:3"]),
    "a key that is a number": ("1: x", 3, ["a key is a name", "'1'"]),
    "a key that is a list": ("? [a]\n: 2", 3, ["a key is a name"]),
    "an empty name": ("engine: ''", 3, ["engine", "at least 1 character"]),
    "a written tag": ("server: {parallel: !!str 8}", 3, ["tag:yaml.org,2002:str"]),
    "a tag of Python": ("server: !!python/object/apply:os.getcwd []", 3, ["python/object/apply:os.getcwd"]),
    "a tag of one's own": ("server: !mine {}", 3, ["!mine"]),
    "an alias into itself": ("server: &loop\n  draft: *loop", 3, ["an alias points to what holds it"]),
    "a repeated key": ("server: {parallel: 1}\nrequest: {}\nserver: {parallel: 2}", 5, ["'server' stands here a second time", "suites/s.yaml:3"]),
    "a repeated key below": ("server:\n  parallel: 1\n  parallel: 2", 5, ["'parallel'", "suites/s.yaml:4"]),
    "two ways to warm up": ("protocol:\n  warmup_s: 5\n  warmup_tokens: 16", 5, ["warmup_s and warmup_tokens", "give one"]),
    "limits of the batch crossed": ("gates: {batch_void_below: 0.9, batch_flag_below: 0.8}", 3, ["gates", "batch_flag_below"]),
    "limits of uncertainty crossed": ("gates: {uncertainty_flag_above: 0.5, uncertainty_void_above: 0.2}", 3, ["uncertainty_flag_above"]),
    "limits of counters crossed": ("gates: {counter_flag_above: 0.3}", 3, ["gates", "counter_flag_above must not be over counter_void_above"]),
    "answers too long": ("request: {answer_tokens: 1024}", 3, ["request.answer_tokens", "1024", "raise context_per_slot"]),
    "answers too long at a point": ("vary:\n  answer_tokens: [128, 2048]", 4, ["vary.answer_tokens", "answer_tokens=2048"]),
    "drafting without a draft": ("draft: {draft_tokens_max: 8}", 3, ["draft", "no effect without draft_model"]),
    "drafting varied without a draft": ("vary: {draft_tokens_max: [1, 2]}", 3, ["vary.draft_tokens_max", "no effect without draft_model"]),
    "no YAML": ("server: {parallel: 1", 4, ["this is no YAML"]),
    "a tab": ("server:\n\tparallel: 1", 4, ["this is no YAML"]),
    "a control character": ("engine: 'a\x00'", 3, ["this is no YAML", "#x0000"]),
    "two documents": ("---\nquestion: q", 3, ["this is no YAML", "another document"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_file_line_key_and_what_was_expected(write, name: str) -> None:
    text, line, fragments = FAULTS[name]
    message = refusal(write(f"{LEAST}{text}\n"), ("clock",))
    first = next(one for one in message.splitlines() if one.startswith(f"suites/s.yaml:{line}: "))
    assert [fragment for fragment in fragments if fragment not in first] == []


def test_every_fault_is_told_in_a_line_of_its_own(write) -> None:
    message = refusal(write("model: m\nserver: {paralel: 2}\nrequest: {promt: x}\nvary: {modle: [a]}\n"))
    assert [line.split(": ", 2)[1] for line in message.splitlines()] == [
        "server.paralel",
        "request.promt",
        "vary.modle",
    ]
    message = refusal(write("model: m\nserver: {parallel: 0}\nrequest: {answer_tokens: -1}\n"))
    assert [line.split(": ")[0] for line in message.splitlines()] == [
        "suites/s.yaml:1",
        "suites/s.yaml:2",
        "suites/s.yaml:3",
    ]


@pytest.mark.parametrize(("text", "missing"), [("model: m\n", "question"), ("question: q\n", "model")])
def test_what_is_missing_is_named(write, text: str, missing: str) -> None:
    assert refusal(write(text)).startswith(f"suites/s.yaml:1: {missing} is missing")


@pytest.mark.parametrize("text", ["", "- 1\n", "just words\n"])
def test_a_suite_is_a_mapping(write, text: str) -> None:
    assert refusal(write(text)) == "suites/s.yaml:1: a suite is a mapping with at least question, model and vary"


def test_a_file_that_cannot_be_read(write) -> None:
    path = write(LEAST)
    path.write_bytes(b"question: \xff\n")
    assert refusal(path).startswith("suites/s.yaml: cannot be read: ")
    assert refusal(path.with_name("none.yaml")).startswith("suites/none.yaml: cannot be read: ")


def test_a_byte_order_mark_and_windows_line_ends(write) -> None:
    path = write("")
    path.write_bytes(b"\xef\xbb\xbfquestion: q\r\nmodel: m\r\nserver: {paralel: 1}\r\n")
    assert refusal(path).startswith("suites/s.yaml:3: server.paralel")


def test_aliases_may_share_values(write) -> None:
    suite = load(write(f"{LEAST}server: {{context_per_slot: &n 512, batch_tokens: *n}}\n"))
    assert (suite.server.context_per_slot, suite.server.batch_tokens) == (512, 512)


PARENT = (
    "question: q\nmodel: big\nformat: q4_0\nvary: {parallel: [1, 2]}\nserver: {context_per_slot: 512, threads: 4}\n"
)


def test_extends_merges_section_by_section(write) -> None:
    suite = load(write("extends: base\nmodel: small\nserver: {threads: 8}\nprotocol: {passes: 2}\n", base=PARENT))
    assert (suite.name, suite.question, suite.model, suite.format) == ("s", "q", "small", "q4_0")
    assert (suite.server.context_per_slot, suite.server.threads) == (512, 8)
    assert suite.protocol.passes == 2
    assert suite.vary == {"parallel": (1, 2)}
    assert [path.name for path in suite.files] == ["s.yaml", "base.yaml"]


def test_extends_replaces_vary_as_a_whole(write) -> None:
    suite = load(write("extends: base.yaml\nvary: {answer_tokens: [64, 128]}\n", base=PARENT))
    assert suite.vary == {"answer_tokens": (64, 128)}


def test_extends_over_several_steps(write) -> None:
    suite = load(write("extends: middle\nformat: q8_0\n", middle="extends: base\nmodel: small\n", base=PARENT))
    assert (suite.model, suite.format, suite.server.threads) == ("small", "q8_0", 4)
    assert [path.stem for path in suite.files] == ["s", "middle", "base"]


def test_extends_finds_both_endings(write) -> None:
    path = write("extends: other\n", base=PARENT)
    write(PARENT, name="other.yml")
    assert load(path).model == "big"


def test_a_fault_in_what_is_extended_is_placed_there(write) -> None:
    message = refusal(write("extends: base\nmodel: small\n", base=PARENT + "request: {promt: x}\n"))
    assert message.startswith("suites/base.yaml:6: request.promt: ")
    message = refusal(write("extends: base\n\nserver: {parallel: 4}\n", base=PARENT))
    assert message.startswith(
        "suites/base.yaml:4: parallel varies and is also fixed by server.parallel at suites/s.yaml:3"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bsae", "there is no suite 'bsae' beside this one; did you mean 'base'?"),
        ("sub/base", "there is no suite 'sub/base' beside this one"),
        ("../base", "there is no suite '../base' beside this one"),
        ("", "expected the name of one other suite, not None"),
        ("[base, other]", "expected the name of one other suite, not ['base', 'other']"),
        ("5", "expected the name of one other suite, not 5"),
        ("s", "s extends itself (s -> s)"),
        ("ring", "s extends itself (s -> ring -> s)"),
    ],
)
def test_what_cannot_be_extended(write, name: str, words: str) -> None:
    message = refusal(write(f"{LEAST}extends: {name}\n", base=PARENT, ring="extends: s\n"))
    assert words in message
    assert message.startswith("suites/ring.yaml:1: extends: " if name == "ring" else "suites/s.yaml:3: extends: ")


def test_several_axes_make_a_grid_the_last_fastest(write) -> None:
    suite = load(write("question: q\nvary: {model: [a, b], parallel: [1, 2], clock: [900, null]}\n"), ("clock",))
    assert suite.axes == ("model", "parallel", "clock")
    assert len(suite.conditions) == 8
    assert suite.conditions[:3] == (
        {"model": "a", "parallel": 1, "clock": 900},
        {"model": "a", "parallel": 1, "clock": None},
        {"model": "a", "parallel": 2, "clock": 900},
    )


def test_a_condition_takes_the_place_of_the_suites_own_values(write) -> None:
    suite = load(
        write(
            "question: q\nformat: q4_0\nknobs: {fan: 3}\nserver: {threads: 2}\n"
            "vary: {model: [a], parallel: [4], answer_tokens: [32], draft_model: [d, null], clock: [900]}\n"
        ),
        ("clock", "fan"),
    )
    setting = suite.setting(suite.conditions[0])
    assert (setting.engine, setting.model, setting.format) == ("llama-server", "a", "q4_0")
    assert setting.server == Server(parallel=4, threads=2)
    assert setting.request == Request(answer_tokens=32)
    assert setting.draft == Draft(draft_model="d")
    assert setting.knobs == {"fan": 3, "clock": 900}
    assert suite.setting(suite.conditions[1]).draft == Draft()


def test_the_record_is_plain_and_names_no_folder(write, tmp_path: Path) -> None:
    suite = load(write("extends: base\n", base=PARENT))
    record = suite.record()
    text = json.dumps(record, allow_nan=False)
    assert str(tmp_path) not in text
    assert json.loads(text) == record
    assert record["files"] == ["s.yaml", "base.yaml"]
    assert record["vary"] == {"parallel": [1, 2]}


def test_a_suite_is_found_in_the_nearest_folder(tmp_path: Path) -> None:
    inner = tmp_path / "predictions" / "deep"
    for folder in (tmp_path / "suites", tmp_path / "predictions" / "suites"):
        folder.mkdir(parents=True)
        (folder / "shared.yaml").write_text(LEAST)
    (tmp_path / "suites" / "far.yml").write_text(LEAST)
    inner.mkdir()
    assert find("shared", inner, tmp_path) == tmp_path / "predictions" / "suites" / "shared.yaml"
    assert find("shared", tmp_path, tmp_path) == tmp_path / "suites" / "shared.yaml"
    assert find("far", inner, tmp_path) == tmp_path / "suites" / "far.yml"
    assert find("far", tmp_path.parent, tmp_path) == tmp_path / "suites" / "far.yml"


def test_a_suite_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no suite 'batch'; there is no suite in .*suites"):
        find("batch", tmp_path, tmp_path)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "decode-batch.yaml").write_text(LEAST)
    with pytest.raises(UsageError, match="there is no suite 'decode-bach'; did you mean 'decode-batch'"):
        find("decode-bach", tmp_path, tmp_path)
    with pytest.raises(UsageError, match="there is no suite 'zzz'; there are decode-batch"):
        find("zzz", tmp_path, tmp_path)


NAMES = st.sampled_from(
    ["question", "model", "format", "engine", "vary", "server", "request", "draft", "knobs", "protocol", "require", "gates", "extends",
     "parallel", "context_per_slot", "prompt", "answer_tokens", "draft_model", "passes", "order", "rounds", "scope", "clock", "name",
     "files", "spread_flag_above", "off", ""]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2048),
    st.floats(),
    st.sampled_from(["m", "all", "chip", "balanced", "", "é\n", "8"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=120, derandomize=True, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=6), st.booleans())
def test_a_file_loads_whole_or_is_refused_in_words(document: dict[str, Any], completed: bool) -> None:
    if completed:
        document = {"question": "q", "model": "m", "server": {"parallel": 2}} | document
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        # JSON is YAML but for its words for what is no number.
        path.write_text(json.dumps(document).replace("NaN", ".nan").replace("Infinity", ".inf"))
        try:
            suite = load(path, ("clock",))
        except UsageError as error:
            refused = str(error).splitlines()
        else:
            refused = []
    if refused:
        assert all(line.startswith(f"{path}") for line in refused)
        return
    json.dumps(suite.record(), allow_nan=False)
    for condition in suite.conditions:
        setting = suite.setting(condition)
        assert setting.model
        assert 0 < setting.request.answer_tokens < setting.server.context_per_slot
        assert hash(tuple(condition.values())) is not None
