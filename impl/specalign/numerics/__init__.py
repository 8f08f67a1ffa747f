"""Arithmetic that several rooms share, stated once."""
