"""What kubeconform checks by: JSON schemas of the API server's own kinds, and of prometheus-operator's."""

import json
from pathlib import Path
from typing import Any

from tests.kubernetes.built import operator_resources, swagger


def write_schemas(folder: Path) -> None:
    """Write a schema for each kind into a folder: KIND.json in small letters; fields that are not in it are refused."""
    definitions = json.loads(swagger().read_text(encoding="utf-8"))["definitions"]
    strict = {name: _strict(definition) for name, definition in definitions.items()}
    (folder / "_definitions.json").write_text(json.dumps({"definitions": strict}))
    for name, definition in definitions.items():
        kinds = definition.get("x-kubernetes-group-version-kind", ())
        if len(kinds) == 1:  # what is of every group, such as DeleteOptions, is none of ours
            schema = {"$ref": f"{folder}/_definitions.json#/definitions/{name}"}
            (folder / f"{kinds[0]['kind'].lower()}.json").write_text(json.dumps(schema))
    for definition in operator_resources():
        spec = definition["spec"]
        schema = _strict(spec["versions"][0]["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        (folder / f"{spec['names']['kind'].lower()}.json").write_text(json.dumps(schema))


def _strict(schema: Any) -> Any:
    """Return a schema whose objects have no other fields than it names."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items() if key != "properties"}
    if "properties" in schema:
        made["properties"] = {name: _strict(value) for name, value in schema["properties"].items()}
        made.setdefault("additionalProperties", False)
    if schema.get("format") == "int-or-string":
        made["type"] = ["string", "integer"]
    return made
