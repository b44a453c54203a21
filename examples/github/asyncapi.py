#!/usr/bin/env python3
"""Writes asyncapi.json: one channel per GitHub webhook event, whose message refers to the published schema.

Run it in this folder after schema.json changed: python3 asyncapi.py

One channel per event, and not one channel `github/{event}` with 66 messages: the topic then names the one message
that applies, so that what is reported about a bad record is about its own event.
"""

import json
from pathlib import Path

HERE = Path(__file__).parent


def events(definitions):
    """Event names with the definition of each: NAME_event or, where that is missing, NAME$event."""
    found = {}
    for name in definitions:
        for ending in ("$event", "_event"):
            if name.endswith(ending):
                event = name.removesuffix(ending)
                found[event] = f"{event}_event" if f"{event}_event" in definitions else name
    return dict(sorted(found.items()))


def message(event, definition):
    return {
        "name": event,
        "title": f"GitHub webhook event {event}",
        "contentType": "application/json",
        "payload": {
            "type": "object",
            "required": ["event", "payload"],
            "properties": {
                "event": {"const": event},
                "payload": {"$ref": f"schema.json#/definitions/{definition}"},
            },
        },
    }


def main():
    definitions = json.loads((HERE / "schema.json").read_text())["definitions"]
    found = events(definitions)
    document = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "GitHub webhook deliveries",
            "version": "1.0.0",
            "description": "Each record is one delivery: the name of the event and its payload. Written by asyncapi.py.",
        },
        "defaultContentType": "application/json",
        "channels": {
            event: {
                "address": f"github/{event}",
                "messages": {event: {"$ref": f"#/components/messages/{event}"}},
            }
            for event in found
        },
        "components": {"messages": {event: message(event, definition) for event, definition in found.items()}},
    }
    (HERE / "asyncapi.json").write_text(json.dumps(document, indent=2) + "\n")


main()
