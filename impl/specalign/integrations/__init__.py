"""Everything that knows an engine's own code: one module an engine."""
