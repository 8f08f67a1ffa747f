"""The command `specalign`: one module a verb. Printing happens here and nowhere below."""
