"""The sub-layers of Transformers: the parameters, kernels and memory of every kind, from its shapes alone, without torch.

Symbols: h hidden size, a heads, w width of a head, q = a w, f inner size of the feed-forward network, V vocabulary, s tokens of
a sample, r rows (samples on one device), n = r s tokens, t tensor-parallel degree, e bytes of an element.

With tensor parallelism every sub-layer is a *sum of t partial functions*: each rank computes a partial output (rank 0 adds the
residual and the bias), and one all-reduce gives the whole; in the backward pass the partial input gradients are summed in the
same way. So a sub-layer costs one all-reduce of its output forward and one of its input backward, and tensor parallelism is
exact. The head instead leaves its logits split over the vocabulary, and the loss is computed on the shards.

The memory is that of the code in `models.torch_units`, checked against torch's allocations; with `unfused` it is that of
published code with separate attention kernels, which keeps 2 score matrices a head, or with dropout 3 and a mask of bytes. That
count gives Galvatron-BMW's Table I within a few per cent. Dropout in `models.torch_units` keeps nothing (see `models.dropout`).
"""

from trainplan.profiling.models.sublayers.attention import Attention, RotaryScaling, attention_block
from trainplan.profiling.models.sublayers.base import (
    DRAWN_AT_ONCE,
    LAYER_KINDS,
    Activation,
    Kind,
    Operator,
    Parameter,
    Sublayer,
    shard_bounds,
)
from trainplan.profiling.models.sublayers.between import Norm, PatchMerging, Upsample
from trainplan.profiling.models.sublayers.delta_net import GatedDeltaNet
from trainplan.profiling.models.sublayers.embeddings import InputProjection, TokenEmbedding
from trainplan.profiling.models.sublayers.experts import Experts
from trainplan.profiling.models.sublayers.feed_forward import FeedForward
from trainplan.profiling.models.sublayers.further_tokens import TokenJoin
from trainplan.profiling.models.sublayers.head_pieces import HeadPieces
from trainplan.profiling.models.sublayers.head_share import HeadShare, why_no_head_share
from trainplan.profiling.models.sublayers.heads import LanguageHead, ValueHead
from trainplan.profiling.models.sublayers.latent import Indexer, LatentAttention
from trainplan.profiling.models.sublayers.lightning import LightningAttention
from trainplan.profiling.models.sublayers.mixers import TokenMixer
from trainplan.profiling.models.sublayers.modules import SelectiveRecomputation, modules_of
from trainplan.profiling.models.sublayers.parallel import ParallelBlock, attention_of
from trainplan.profiling.models.sublayers.pieces import KeyShare, cut, halves, why_not_cut
from trainplan.profiling.models.sublayers.state_space import SelectiveScan, StateSpace
from trainplan.profiling.models.sublayers.token_share import TokenShare, why_not_shared

__all__ = [
    "DRAWN_AT_ONCE",
    "LAYER_KINDS",
    "Activation",
    "Attention",
    "Experts",
    "FeedForward",
    "GatedDeltaNet",
    "HeadPieces",
    "HeadShare",
    "Indexer",
    "InputProjection",
    "KeyShare",
    "Kind",
    "LanguageHead",
    "LatentAttention",
    "LightningAttention",
    "Norm",
    "Operator",
    "ParallelBlock",
    "Parameter",
    "PatchMerging",
    "RotaryScaling",
    "SelectiveRecomputation",
    "SelectiveScan",
    "StateSpace",
    "Sublayer",
    "TokenEmbedding",
    "TokenJoin",
    "TokenMixer",
    "TokenShare",
    "Upsample",
    "ValueHead",
    "attention_block",
    "attention_of",
    "cut",
    "halves",
    "modules_of",
    "shard_bounds",
    "why_no_head_share",
    "why_not_cut",
    "why_not_shared",
]
