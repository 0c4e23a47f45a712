"""Answers -> text: tables, Markdown, CSV, and the dicts that become JSON. Nothing here prints."""
