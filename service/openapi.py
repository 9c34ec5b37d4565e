"""The OpenAPI document: every status that an operation may answer with, the refusals as problem documents (RFC 9457)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

__all__ = ["declare_refusals", "raw_body"]

PROBLEM: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "one line for a person"},
        "errors": {"type": "array", "items": {"type": "object"}, "description": "every field that is wrong: loc, msg"},
    },
}
# By service/gate.py and service/problems.py, whatever the operation.
ALWAYS = {
    "401": "The token is missing or not valid.",
    "403": "The caller lacks the right, or the request came from elsewhere.",
    "503": "Overloaded, or the database is busy or gone: nothing was stored, send it again after Retry-After.",
}
OF_A_PATH = {"404": "There is nothing of that name."}
OF_A_BODY = {
    "400": "The body cannot be read.",
    "413": "The body is larger than is taken.",
    "415": "The body has a Content-Encoding that is not taken here.",
}
OF_VALUES = {"422": "A value is not what it may be."}
RETRY_AFTER = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}


def raw_body(**schemas: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself. `schemas`: by content type, written `application_json`."""
    content = {name.replace("_", "/", 1).replace("_", "-"): {"schema": schema} for name, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def declare_refusals(app: FastAPI) -> None:
    """Have the document of `app` name all refusals of each operation, beside those that its route declares."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = describe()
            schemas = document["components"]["schemas"]
            schemas["Problem"] = PROBLEM
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            for operation in (operation for path in document["paths"].values() for operation in path.values()):
                for media in operation.get("requestBody", {}).get("content", {}).values():
                    schemas |= media["schema"].pop("$defs", {})
                operation["responses"] |= refusals(operation)
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def refusals(operation: dict[str, Any]) -> dict[str, Any]:
    """The responses of 400 and above of one operation of the document, by status."""
    places = {parameter["in"] for parameter in operation.get("parameters", ())}
    found = dict(ALWAYS)
    if "path" in places:
        found |= OF_A_PATH
    if "requestBody" in operation:
        found |= OF_A_BODY
    if places or "requestBody" in operation:
        found |= OF_VALUES
    # FastAPI's own 422 describes another document than service/problems.py answers with.
    declared = {status: it for status, it in operation["responses"].items() if status >= "4" and status != "422"}
    return {status: described(status, text) for status, text in sorted(found.items())} | {
        status: it if "content" in it else described(status, it["description"]) for status, it in declared.items()
    }


def described(status: str, text: str) -> dict[str, Any]:
    media = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": text, "content": media, **({"headers": RETRY_AFTER} if status == "503" else {})}
