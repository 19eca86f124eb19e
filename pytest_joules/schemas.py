"""JSON Schemas (draft 2020-12) of the files that people and programs meet: suites, runs and verdicts.

They are made from the classes that read these files, and their words from the docstrings, so that neither is said twice.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from pytest_joules.records import SCHEMA_VERSION, Run, Verdict
from pytest_joules.suite import Suite, axis_sections, keys_of

_OF_THE_LOADER = ("name", "files")
"""Fields of a suite that no file holds."""


def run() -> dict[str, Any]:
    """Of the file of a run, `<utc>-<id>.json`. Keys that are not known are allowed, as the reader passes over them."""
    schema = _of(Run, "pytest-joules run")
    # The reader refuses every other version, and a file that has none.
    schema["properties"]["schema_version"] |= {"const": SCHEMA_VERSION}
    schema["required"].append("schema_version")
    return schema


def verdict() -> dict[str, Any]:
    """Of one line of a `<utc>-<id>.verdicts.jsonl`."""
    return _of(Verdict, "pytest-joules verdict")


def suite(knobs: Sequence[str], engines: Sequence[str]) -> dict[str, Any]:
    """Of a suite as somebody writes it: each key by itself. What only several keys together show, `joules check` tells.

    Args:
        knobs: names of the machine knobs that exist.
        engines: names of the engines that exist.
    """
    schema = _of(Suite, "pytest-joules suite")
    keys, parts = schema["properties"], schema["$defs"]
    for name in _OF_THE_LOADER:
        del keys[name]
    for name in keys:
        # What a section is, and what holds where a key of it is left out, stands with the section itself.
        keys[name] = {"$ref": keys[name]["$ref"]} if "$ref" in keys[name] else keys[name]
    keys["extends"] = {
        "description": "The name of one other suite beside this one, whose keys stand where this one has none.",
        "minLength": 1,
        "type": "string",
    }
    keys["engine"]["enum"] = sorted(engines)
    keys["knobs"] |= {"properties": {name: {} for name in sorted(knobs)}, "additionalProperties": False}
    keys["vary"] |= {
        "properties": {
            axis: {
                "description": field.get("description", f"Values of {axis}."),
                "items": {key: value for key, value in field.items() if key not in ("default", "description")},
                "minItems": 1,
                "type": "array",
                "uniqueItems": True,
            }
            for axis, section in axis_sections(knobs).items()
            # An axis takes single values, so what is a list by itself cannot vary.
            if (field := _field(keys, parts, section, axis)).get("type") != "array"
        },
        "additionalProperties": False,
    }
    del schema["required"]
    schema["if"] = {"not": {"required": ["extends"]}}
    schema["then"] = {
        "required": ["question"],
        "anyOf": [
            {"required": ["model"]},
            {"required": ["vary"], "properties": {"vary": {"required": ["model"]}}},
        ],
    }
    return schema


def _field(keys: Mapping[str, Any], parts: Mapping[str, Any], section: str, axis: str) -> Mapping[str, Any]:
    """The schema of a key that may vary. A name that may be left out is not left out by an axis, so null goes."""
    if section == "knobs":
        return {"not": {"type": ["array", "object"]}, "description": f"Values of the knob {axis}."}
    if section:
        found: Mapping[str, Any] = parts[keys[section]["$ref"].rpartition("/")[2]]["properties"][keys_of(axis)[0]]
        return found
    named = next((choice for choice in keys[axis].get("anyOf", ()) if choice["type"] != "null"), keys[axis])
    return {**named, "description": keys[axis]["description"]}


def _of(cls: type, title: str) -> dict[str, Any]:
    schema = TypeAdapter(cls).json_schema(schema_generator=_Described)
    return {"$schema": _Described.schema_dialect, **schema, "title": title}


class _Described(GenerateJsonSchema):
    """Takes the words from the docstrings; pydantic itself reads descriptions only below each field."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """No title for fields: it would be their name once more."""
        return False

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema of a class with what its docstring says."""
        made = super().dataclass_schema(schema)
        made["description"], fields = documented(schema["cls"])
        for name, text in fields.items():
            made["properties"][name]["description"] = text
        return made


def documented(cls: type) -> tuple[str, dict[str, str]]:
    """What a class's docstring says of it, and of each attribute (Google style; one entry may name several)."""
    text, _, attributes = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    fields: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", attributes.rstrip()):
        names, _, told = " ".join(entry.split()).partition(": ")
        for name in names.split(", ") if told else ():
            fields[name] = told.replace("`None`", "`null`")
    return " ".join(text.split()), fields
