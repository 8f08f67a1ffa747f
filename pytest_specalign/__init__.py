"""pytest_specalign: the pytest plugin of specalign.

The plugin itself is the module `pytest_specalign.plugin`. This package names no `pytest_plugins`: the entry point leads to the
library package `specalign`, which names the plugin, so every way of loading registers it once.
"""
