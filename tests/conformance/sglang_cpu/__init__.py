"""SGLang's own model files on the CPU: the engine half of the conformance tests. Importing this package boots the engine.

Nothing in here re-implements the engine: setters, forwards, the packing of captured states and the draft head are the code of
the installed wheel. Only what needs a GPU is replaced: attention over a paged cache (`attention.py`), and what `boot.py` lists.
"""

from tests.conformance.sglang_cpu.boot import boot

boot()
