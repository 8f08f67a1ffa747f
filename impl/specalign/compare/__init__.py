"""Where two runs of one model differ first, and why: bits, coverage, explanations, reports."""
