"""Pipeline parallel, with ``torch.distributed.pipelining``'s names: each rank has some layers, and passes micro-batches on."""

from ... import absent as _absent
from .schedules import Schedule1F1B as Schedule1F1B
from .schedules import ScheduleGPipe as ScheduleGPipe
from .schedules import ScheduleInterleaved1F1B as ScheduleInterleaved1F1B
from .stage import PipelineStage as PipelineStage

__getattr__ = _absent.refuses("distributed")
