"""specalign: prove that two engines which run the same model agree to the bit.

This package is the library under the pytest plugin `pytest_specalign`. Importing it imports nothing else: rooms such as
`specalign.layer_ids` are imported by name. It doubles as the target of the `pytest11` entry point, so that `-p specalign`
and autoloading both register one plugin, `pytest_specalign.plugin`, exactly once.
"""

pytest_plugins = ("pytest_specalign.plugin",)
