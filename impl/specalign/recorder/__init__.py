"""Recording: the layers of every forward of a model, by hooks, into a dump.

`record_layers` is for any `nn.Module`; `specalign.integrations` has it for SGLang's --forward-hooks and Megatron's chunks.
"""

from specalign.recorder.batch import RowBatch
from specalign.recorder.copying import Stats
from specalign.recorder.errors import RecordError
from specalign.recorder.record import Recording, record_layers

__all__ = ["RecordError", "Recording", "RowBatch", "Stats", "record_layers"]
