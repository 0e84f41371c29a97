"""``tinygrad_mem.data`` under PyTorch's name."""

from ... import absent as _absent
from ...data.collate import default_collate as default_collate
from ...data.collate import default_convert as default_convert
from ...data.dataset import ChainDataset as ChainDataset
from ...data.dataset import ConcatDataset as ConcatDataset
from ...data.dataset import Dataset as Dataset
from ...data.dataset import IterableDataset as IterableDataset
from ...data.dataset import StackDataset as StackDataset
from ...data.dataset import Subset as Subset
from ...data.dataset import TensorDataset as TensorDataset
from ...data.dataset import random_split as random_split
from ...data.loader import DataLoader as DataLoader
from ...data.sampler import BatchSampler as BatchSampler
from ...data.sampler import DistributedSampler as DistributedSampler
from ...data.sampler import RandomSampler as RandomSampler
from ...data.sampler import Sampler as Sampler
from ...data.sampler import SequentialSampler as SequentialSampler
from ...data.sampler import SubsetRandomSampler as SubsetRandomSampler
from ...data.sampler import WeightedRandomSampler as WeightedRandomSampler
from ...data.sequences import BucketBatchSampler as BucketBatchSampler
from ...data.sequences import Packed as Packed
from ...data.sequences import PadCollate as PadCollate
from ...data.sequences import Padded as Padded
from ...data.sequences import TokenBatchSampler as TokenBatchSampler
from ...data.sequences import pack_collate as pack_collate
from ...data.tokens import TokenFile as TokenFile
from ...data.tokens import TokenStream as TokenStream
from ...data.tokens import write_tokens as write_tokens
from ...data.workers import WorkerInfo as WorkerInfo
from ...data.workers import get_worker_info as get_worker_info

__getattr__ = _absent.refuses("utils.data")
