"""What two processes must have in common to work with each other. Pure: hellos in, verdicts out."""

from common.config import ServeConfig
from common.engine.sizing import dtype_of, kv_name, spec_of
from common.ids import Role
from common.messages import Hello, HelloRefused, ModelIdentity
from common.model.spec import ModelSpec


def wanted(config: ServeConfig, model: ModelSpec, fingerprint: str) -> ModelIdentity:
    """What workers must have that join a server of that configuration, its model's name settled.

    The kernel path is left empty: a gateway computes nothing.
    """
    kv = spec_of(config, model)
    return ModelIdentity(
        name=config.served_model_name or "",
        fingerprint=fingerprint,
        kv_dtype=kv_name(kv, dtype_of(config, model)),
        page_layout=kv.describe(),
        kernel_path="",
    )


def difference(
    ours: Hello, theirs: Hello, reference: ModelIdentity | None = None
) -> HelloRefused | None:
    """The first thing that must be equal and is not. An empty value is unknown: not compared.

    `reference` stands in for the model of a gateway, which has none.
    """
    pairs: list[tuple[str, str | int, str | int]] = [("protocol", ours.protocol, theirs.protocol)]
    model, other = ours.model or reference, theirs.model
    if ours.protocol == theirs.protocol and other is None and theirs.peer.role is not Role.GATEWAY:
        pairs.append(("model", model.name if model else "any", "none"))
    if model is not None and other is not None:
        pairs += [
            ("model", model.name, other.name),
            ("model fingerprint", model.fingerprint, other.fingerprint),
            ("kv_dtype", model.kv_dtype, other.kv_dtype),
        ]
        if ours.limits is not None and theirs.limits is not None:
            pairs.append(("block_size", ours.limits.page_tokens, theirs.limits.page_tokens))
        pairs += [
            ("page_layout", model.page_layout, other.page_layout),
            ("kernel_path", model.kernel_path, other.kernel_path),
        ]
    for name, our_value, their_value in pairs:
        if our_value != their_value and our_value != "" and their_value != "":
            return HelloRefused(field=name, ours=str(our_value), theirs=str(their_value))
    return None


def completed(known: ModelIdentity | None, seen: ModelIdentity) -> ModelIdentity:
    """`known`, what it leaves empty taken from `seen`."""
    if known is None:
        return seen
    names = ModelIdentity.__struct_fields__
    return ModelIdentity(**{name: getattr(known, name) or getattr(seen, name) for name in names})
