"""Mixtures of experts in a configuration: a layer's experts from the fields of any family, and which layers have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainplan.profiling.base.errors import caution, shown
from trainplan.profiling.models.families.decoder import Decoder
from trainplan.profiling.models.families.fields import Fields, names
from trainplan.profiling.models.families.unread import MIXTURES
from trainplan.profiling.models.sublayers import Experts, FeedForward, Sublayer

# Fields of routers that change how a model is trained, but no parameter: losses, noise, scaling of probabilities.
ROUTER_FIELDS = names(
    """
    output_router_logits router_aux_loss_coef router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux norm_topk_prob
    routed_scaling_factor scoring_func topk_method ep_size
    """
)


def experts_of(
    fields: Fields,
    sizes: Decoder,
    count: str,
    inner: str = "moe_intermediate_size",
    chosen: str = "num_experts_per_tok",
    **options: Any,
) -> Experts | FeedForward:
    """Read a layer's routed experts: the mixture as a sub-layer, or, of one expert, the feed-forward network that it is.

    sizes: the model's sizes, read before. count, inner, chosen: the fields with the number of experts, their inner size, and
    the number that works on a token. options: further keyword arguments of `Experts`. Raises InputError for fields that are
    missing or invalid.
    """
    usual = MIXTURES.get(str(fields.read.get("model_type")), (None, None))
    experts, width = fields.count(count, usual[0], such_as=8), fields.size(inner, such_as=1408)
    activation = fields.activation("hidden_act", "silu")
    if experts == 1:
        both = width + int(options.get("shared_inner", 0))
        return sizes.feed_forward(inner=both, activation=activation, gated=True, bias=bool(options.get("bias")))
    used = fields.count(chosen, usual[1], most=experts, such_as=2)
    return sizes.experts(experts=experts, chosen=used, inner=width, **{"activation": activation, **options})


def grouped(fields: Fields, count: str, usual: tuple[int, int] = (1, 1)) -> dict[str, int]:
    """Read the groups of experts of node-limited routing (`n_group`, `topk_group`), as keyword arguments of `Experts`; empty if
    a token's experts may be in any groups.

    count: the field with the number of experts, which the number of groups must divide. usual: the two numbers if the
    configuration states none. Raises InputError for invalid fields.
    """
    groups = fields.count("n_group", usual[0])
    chosen = fields.count("topk_group", usual[1], most=groups)
    fields.divisor("n_group", groups, count, int(fields.config.get(count) or groups))
    return {"groups": groups, "chosen_groups": chosen} if chosen < groups else {}


def shared_inner(fields: Fields, count: str, usual: int = 0, inner: str = "moe_intermediate_size") -> int:
    """Read the inner size of all shared experts together: their number times the size of one; 0 without any.

    count, inner: the fields with the number and the size. usual: the number if the configuration states none. Raises InputError
    for invalid fields.
    """
    number = fields.count(count, usual, least=0)
    return number * fields.size(inner, such_as=1408) if number else 0


def dense_first(fields: Fields, layers: int, usual: int = 0) -> list[bool]:
    """Whether each layer has experts, of a configuration whose first layers are dense (`first_k_dense_replace`), as DeepSeek's,
    and which may have experts only in every n-th layer (`moe_layer_freq`), or a list of the layers' kinds (`mlp_layer_types`).

    layers: the number of layers. usual: the number of dense layers if the configuration states none. Raises InputError for
    invalid fields.
    """
    if fields.config.get("mlp_layer_types") is not None:
        return listed(fields, "mlp_layer_types", layers)
    first = fields.count("first_k_dense_replace", usual, least=0)
    every = fields.count("moe_layer_freq", 1) if fields.config.get("moe_layer_freq") is not None else 1
    return [i >= first and i % every == 0 for i in range(layers)]


def listed(fields: Fields, name: str, layers: int) -> list[bool]:
    """Whether each layer has experts, from a list of "dense" and "sparse", or of 0 and 1, in a field. Raises InputError for
    other lists.

    layers: the number of layers, which the list must have.
    """
    value = fields.config[name]
    words: dict[Any, bool] = {"dense": False, "sparse": True, 0: False, 1: True}
    if not isinstance(value, list) or len(value) != layers or any(item not in words for item in value):
        raise fields.fail(name, f"is {shown(value)}", f'give "dense" or "sparse" for each of {layers} layers')
    fields.read[name] = value
    return [words[item] for item in value]


def stepped(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer has experts, of a configuration that has them in every n-th layer (`decoder_sparse_step`), except for
    the layers in a list (`mlp_only_layers`), as Qwen's; a number of experts of 0 makes all layers dense.

    layers: the number of layers. Raises InputError for invalid fields.
    """
    every, dense = fields.count("decoder_sparse_step", 1), indices(fields, "mlp_only_layers", layers)
    if fields.config.get("num_experts") == 0:
        fields.read["num_experts"] = 0
        return [False] * layers
    return [(i + 1) % every == 0 and i not in dense for i in range(layers)]


def indices(fields: Fields, name: str, layers: int) -> list[int]:
    """Read a list of indices of layers, from 0; empty if the field is absent. layers: the number of layers. Raises InputError
    for other values."""
    value = fields.config.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or any(type(i) is not int or not 0 <= i < layers for i in value):
        raise fields.fail(name, f"is {shown(value)}", f"give a list of whole numbers from 0 to {layers - 1}")
    fields.read[name] = value
    return value


def networks_of(sparse: Sequence[bool], experts: Sublayer, dense: Sublayer) -> list[Sublayer]:
    """Each layer's unit that works on each token. sparse: whether it is `experts`, by layer; else it is `dense`."""
    return [experts if has_experts else dense for has_experts in sparse]


def further_tokens(fields: Fields, name: str = "num_nextn_predict_layers") -> None:
    """Read the number of layers at a model's end that predict further tokens, of which there is a warning that they are left
    out, as transformers leaves them out of a model that it loads; `mtp_num_layers` of the configuration says how many are to be
    there. Raises InputError for an invalid number."""
    layers = fields.count(name, 0, least=0)
    del fields.read[name]
    if layers and fields.config.get("mtp_num_layers") is None:
        fix = f'layers that predict further tokens are left out of account: add "mtp_num_layers": {layers} to count them'
        caution(fields.where, f"{fields.part}{name}", f"is {layers}", fix)
