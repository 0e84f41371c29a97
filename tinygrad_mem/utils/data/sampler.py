"""``torch.utils.data.sampler``'s names."""

from ...data.sampler import BatchSampler as BatchSampler
from ...data.sampler import DistributedSampler as DistributedSampler
from ...data.sampler import RandomSampler as RandomSampler
from ...data.sampler import Sampler as Sampler
from ...data.sampler import SequentialSampler as SequentialSampler
from ...data.sampler import SubsetRandomSampler as SubsetRandomSampler
from ...data.sampler import WeightedRandomSampler as WeightedRandomSampler
