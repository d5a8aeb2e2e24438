"""What `mugrpo schema` prints: the JSON schema of a config file, for editors."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from mugrpo.config.base import NamedOptions, Options, members_of
from mugrpo.config.rewards import FunctionOptions, Reward
from mugrpo.config.run import PRESETS, RunConfig
from mugrpo.config.tasks import Source


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 7) of a config file.

    It accepts every file that the loader accepts. It refuses unknown options, wrong types and
    values out of bounds, but not combinations of options that do not work. The defaults are those
    of a config without `preset`.
    """
    document = RunConfig.model_json_schema(schema_generator=_Draft7)
    definitions = document["$defs"]
    config = RunConfig()
    for _, options in [("", config), *config]:
        if isinstance(options, Options):
            table = definitions.get(type(options).__name__, document)
            for leaf, value in options.model_dump(mode="json", exclude_none=True).items():
                if "default" in table["properties"][leaf]:
                    table["properties"][leaf]["default"] = value
    for options in _named():
        definitions[options.__name__].setdefault("required", []).insert(0, "name")
    return {"$schema": _Draft7.schema_dialect, **document}


def _named() -> list[type[NamedOptions]]:
    """Return the choices that a table gets only if it has their name."""
    members = [*RunConfig.choices().values(), members_of(Reward), members_of(Source)]
    unnamed = {FunctionOptions, members_of(Source)["dataset"]} | {
        named[RunConfig.over_preset({"preset": preset})[group]["name"]]
        for preset in PRESETS
        for group, named in RunConfig.choices().items()
    }
    return [options for named in members for options in named.values() if options not in unnamed]


class _Draft7(GenerateJsonSchema):
    """A schema for TOML, which has no null, in the draft that Taplo reads, whatever it is told."""

    schema_dialect = "http://json-schema.org/draft-07/schema#"

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        default = schema.get("default")
        if default is None or isinstance(default, Options):  # each option of a group has its own
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        # Without a name, options may belong to several choices.
        return {"anyOf": [self.generate_inner(choice) for choice in schema["choices"].values()]}

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        array = super().tuple_schema(schema)
        if "prefixItems" in array:
            array["items"] = array.pop("prefixItems")
        return array
