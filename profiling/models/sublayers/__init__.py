"""The sub-layers of Transformers: parameters, operators and bytes of each, from its shapes alone.

Symbols: h hidden size, a heads, w width of a head, q = a w, f inner size of the FFN, V vocabulary, s tokens of a sample,
r rows (samples on one device), n = r s tokens, t tensor-parallel degree, e bytes of an element.

Every sub-layer is a *sum of t partial functions*: each tensor-parallel rank computes a partial output (rank 0 adds the
residual and the bias), and one all-reduce gives the whole; in the backward pass the partial input gradients are summed the
same way. So a sub-layer costs one all-reduce of its output forward and one of its input backward, and tensor parallelism is
exact. The head instead leaves its logits split over the vocabulary, and the loss is computed on the shards.

Bytes are those of trainplan's own sub-layers, checked against torch's allocations, or, where `unfused` is set, those that
published code with separate attention kernels keeps: 2 score matrices a head, or 3 and a mask of bytes with dropout. That
count gives Galvatron-BMW's Table I within a few per cent. Dropout in trainplan's own keeps nothing (see `models.dropout`).
"""

from trainplan.profiling.models.sublayers.attention import Attention, RotaryScaling, attention_block
from trainplan.profiling.models.sublayers.base import (
    DRAWN_AT_ONCE,
    LAYERED,
    Activation,
    Kind,
    Operator,
    Parameter,
    Sublayer,
    shard_bounds,
)
from trainplan.profiling.models.sublayers.between import Norm, PatchMerging, Upsample
from trainplan.profiling.models.sublayers.embeddings import InputProjection, TokenEmbedding
from trainplan.profiling.models.sublayers.feed_forward import FeedForward
from trainplan.profiling.models.sublayers.head_pieces import HeadPieces
from trainplan.profiling.models.sublayers.head_share import HeadShare, why_no_head_share
from trainplan.profiling.models.sublayers.heads import LanguageHead, ValueHead
from trainplan.profiling.models.sublayers.modules import Selective, modules_of
from trainplan.profiling.models.sublayers.parallel import ParallelBlock, attention_of
from trainplan.profiling.models.sublayers.pieces import KeyShare, cut, halves, why_not_cut
from trainplan.profiling.models.sublayers.token_share import TokenShare, why_not_shared

__all__ = [
    "DRAWN_AT_ONCE",
    "LAYERED",
    "Activation",
    "Attention",
    "FeedForward",
    "HeadPieces",
    "HeadShare",
    "InputProjection",
    "KeyShare",
    "Kind",
    "LanguageHead",
    "Norm",
    "Operator",
    "ParallelBlock",
    "Parameter",
    "PatchMerging",
    "RotaryScaling",
    "Selective",
    "Sublayer",
    "TokenEmbedding",
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
