"""What a measured table is written as: text, JSON (`specalign.acceptance/1`), and a page."""

from specalign.acceptance.report.html import write_html
from specalign.acceptance.report.json_report import as_json, format_json
from specalign.acceptance.report.measured import Measured
from specalign.acceptance.report.text import format_measured

__all__ = ["Measured", "as_json", "format_json", "format_measured", "write_html"]
