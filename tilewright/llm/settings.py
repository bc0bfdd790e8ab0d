"""The content of a config.json, read with care: what is there and was not looked at is an error, not ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..support.errors import UnsupportedError
from .config import Rope, Scaling

#: fields that say nothing about the logits of a decoder
WITHOUT_EFFECT = frozenset(
    """architectures model_type torch_dtype dtype transformers_version _name_or_path use_cache initializer_range
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id decoder_start_token_id
    attention_dropout hidden_dropout embd_pdrop resid_pdrop attn_pdrop dropout embedding_dropout residual_dropout
    activation_dropout layerdrop pretraining_tp auto_map _attn_implementation attn_implementation
    output_attentions output_hidden_states return_dict id2label label2id problem_type num_labels finetuning_task
    chunk_size_feed_forward is_encoder_decoder is_decoder task_specific_params tokenizer_class prefix torchscript
    use_bfloat16 gradient_checkpointing keys_to_ignore_at_inference init_device name_or_path
    transformers.js_config is_llama_config cache_implementation initializer_factor""".split()  # noqa: SIM905
)


class ModelSettings:
    """Fields of a config.json. `get` reads one, `need` one that must be there, `only` one that may have few values.
    `finish` is an UnsupportedError for all that nobody read: they might change what the model computes."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields, self.read = dict(fields), set[str]()

    @property
    def kind(self) -> str:
        """The kind of model that it says it is."""
        return str(self.fields.get("model_type"))

    def get(self, name: str, default: Any = None) -> Any:
        """A field; `default` where it is missing or null."""
        self.read.add(name)
        value = self.fields.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        """A field; UnsupportedError where it is missing."""
        if (value := self.get(name)) is None:
            raise UnsupportedError(f"config.json of this {self.kind} model has no {name!r}", stage="import")
        return value

    def only(self, name: str, *allowed: Any) -> Any:
        """A field that has one of these values, the first where it is missing; UnsupportedError for others."""
        if (value := self.get(name, allowed[0])) not in allowed:
            raise UnsupportedError(
                f"config.json of this {self.kind} model has {name} = {value!r}",
                stage="import",
                hint=f"{name} may be {' or '.join(map(repr, allowed))}",
            )
        return value

    def ignore(self, *names: str) -> None:
        """These fields say nothing about the logits."""
        self.read.update(names)

    def finish(self) -> None:
        """UnsupportedError that lists the fields that were not read, but for those that are null, false or empty."""
        rest = {n: v for n, v in self.fields.items() if n not in self.read | WITHOUT_EFFECT and v}
        if rest:
            raise UnsupportedError(
                f"config.json of this {self.kind} model has fields that are not known here: "
                + ", ".join(f"{n} = {v!r}" for n, v in sorted(rest.items())),
                stage="import",
                hint="they might change what the model computes; take those out that do not",
            )

    def layer_kinds(self, usual: Sequence[str]) -> Sequence[str]:
        """``layer_types``, one a layer; `usual` where there are none."""
        kinds = self.get("layer_types", usual)
        if len(kinds) != len(usual):
            raise UnsupportedError(f"config.json has {len(kinds)} layer_types for {len(usual)} layers", stage="import")
        return list(kinds)

    def rope(self, depth: int, *, kind: str | None = None, theta: float = 10000.0, local: float | None = None) -> Rope:
        """The rotary embedding for heads of `depth` numbers: of ``rope_parameters`` (for layers of this kind, where it
        has several), or of ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor``. With `local` these layers
        have that base and no scaling, unless ``rope_parameters`` has their kind."""
        given = dict(self.get("rope_parameters") or self.get("rope_scaling") or {})
        self.ignore("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor")
        nested = any(isinstance(v, Mapping) for v in given.values())
        if nested and kind is None:
            raise UnsupportedError(
                f"config.json of this {self.kind} model has rotary positions by kinds of layers: {', '.join(given)}",
                stage="import",
            )
        if nested:
            given = dict(given.get(kind) or {})
        elif local is not None:
            return Rope(depth, float(local))
        base = given.pop("rope_theta", None) or (local if nested else None) or self.get("rope_theta", theta)
        share = given.pop("partial_rotary_factor", None) or self.get("partial_rotary_factor", 1.0)
        context, original = self.get("max_position_embeddings", 0), self.get("original_max_position_embeddings")
        return Rope(int(depth * share), float(base), scaling=scaling_of(given, int(context), original, self.kind))


def scaling_of(given: Mapping[str, Any], context: int, original: int | None, model: str) -> Scaling | None:
    """The scaling that ``rope_scaling`` gives; UnsupportedError for a kind that is not known, or a field of it."""
    import math

    rest = dict(given)
    kind = rest.pop("rope_type", None) or rest.pop("type", None) or "default"
    rest.pop("type", None)
    original = int(original or rest.pop("original_max_position_embeddings", None) or context)
    rest.pop("original_max_position_embeddings", None)

    def take(name: str, default: float) -> float:
        value = rest.pop(name, None)
        return float(default if value is None else value)

    made: Scaling | None
    if kind == "default":
        made = None
    elif kind == "linear":
        made = Scaling("linear", take("factor", 1))
    elif kind == "llama3":
        low, high = take("low_freq_factor", 1), take("high_freq_factor", 4)
        made = Scaling("llama3", take("factor", 1), original, low=low, high=high)
    elif kind == "yarn":
        factor = take("factor", context / original)

        def magnitude(m: float) -> float:
            return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0

        m, all_dims = take("mscale", 0), take("mscale_all_dim", 0)
        ratio = magnitude(m) / magnitude(all_dims) if m and all_dims else magnitude(1)
        attention, fast, slow = take("attention_factor", ratio), take("beta_fast", 32), take("beta_slow", 1)
        rounded = bool(rest.pop("truncate", True))
        made = Scaling("yarn", factor, original, fast=fast, slow=slow, rounded=rounded, attention=attention)
    elif kind in ("longrope", "su"):
        factor = take("factor", context / original)
        usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        lists = [tuple(map(float, rest.pop(n))) for n in ("short_factor", "long_factor")]
        made = Scaling(
            "longrope", factor, original, short=lists[0], long=lists[1], attention=take("attention_factor", usual)
        )
    else:
        raise UnsupportedError(
            f"config.json of this {model} model scales rotary positions by {kind!r}",
            stage="import",
            hint="kinds: default, linear, llama3, yarn, longrope",
        )
    if left := {n: v for n, v in rest.items() if v}:
        raise UnsupportedError(
            f"config.json: fields of rope scaling {kind!r} that are not known: {left}", stage="import"
        )
    return made


__all__ = ["ModelSettings", "scaling_of"]
