"""The forms of a `CompareReport`: one screen of text, JSON (`specalign.compare/1`) and a page that works offline."""

from specalign.compare.report.html import write_html
from specalign.compare.report.json_report import JSON_SCHEMA_NAME, format_json, to_json
from specalign.compare.report.text import format_text

__all__ = ["JSON_SCHEMA_NAME", "format_json", "format_text", "to_json", "write_html"]
