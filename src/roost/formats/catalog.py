"""The catalog as operators write it: read with all its problems, written back (FORMATS.md §1)."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from roost.domain.model import Catalog, Model, ModelName, Queue
from roost.domain.profile import Profile
from roost.errors import Unusable
from roost.formats import nodes
from roost.formats.nodes import At, List, Node, NotReadable
from roost.formats.profile import (
    MOST_PRIORITY,
    PROFILE_KEYS,
    Rules,
    name_of,
    number,
    profile_to_json,
    read_profile,
)
from roost.formats.reading import Fields, Problems, quoted, shown

MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
MOST_REPLICAS: Final = 100_000
MOST_WAITING: Final = 1_000_000

CATALOG_KEYS: Final = ("models",)
MODEL_KEYS: Final = ("name", "aliases", "replicas", "priority", "queue", "profiles")
QUEUE_KEYS: Final = ("size", "max_wait_s")


def parse_catalog(text: str, *, filename: str, rules: Rules) -> Catalog:
    """The catalog in a YAML or JSON text; `Unusable` with every problem and its place."""
    problems = Problems(filename)
    plain = nodes.from_json(text)
    if plain is not None:
        catalog = _catalog(plain, problems, rules)
        if not problems:
            return catalog
        # Read again as YAML, for the positions.
        with_positions = Problems(filename)
        try:
            positioned = nodes.from_yaml(text)
        except NotReadable:
            positioned = None
        if positioned is not None:
            _catalog(positioned, with_positions, rules)
            problems = with_positions or problems
        raise _unusable(problems)
    catalog = Catalog()
    try:
        document = nodes.from_yaml(text)
    except NotReadable as error:
        problems.add(error.at, f"the catalog {error.message}")
    else:
        if document is None:
            problems.add(
                At(1, 1), "the catalog is empty: write models: [] for a catalog of no models"
            )
        else:
            catalog = _catalog(document, problems, rules)
    if problems:
        raise _unusable(problems)
    return catalog


def _unusable(problems: Problems) -> Unusable:
    lines = problems.lines()
    many = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    return Unusable(f"{problems.filename} can't be used: {many}", problems=lines)


def _catalog(document: Node, problems: Problems, rules: Rules) -> Catalog:
    if not isinstance(document, nodes.Mapping):
        hint = ": put it under models:" if isinstance(document, List) else ""
        problems.add(
            document.at, f"the catalog must be a mapping with models, not {shown(document)}{hint}"
        )
        return Catalog()
    fields = Fields(
        document, problems, known=CATALOG_KEYS, of="the catalog", elsewhere=_belongs(CATALOG_KEYS)
    )
    if not fields.has("models"):
        fields.need("models", "write models: [] for a catalog of no models")
        return Catalog()
    listed = fields.node("models", instead="write models: [] for a catalog of no models")
    if listed is None:
        return Catalog()
    if not isinstance(listed, List):
        fields.wrong("models", f"models must be a list, not {shown(listed)}")
        return Catalog()
    taken: dict[str, At | None] = {}
    models = []
    for index, item in enumerate(listed.items):
        model = _model(item, problems, rules, index=index, taken=taken)
        if model is not None:
            models.append(model)
    return Catalog(models=tuple(models))


def _belongs(here: tuple[str, ...]) -> Callable[[str], str | None]:
    """Tells a key that is right, and in the wrong place, where it belongs."""

    def hint(key: str) -> str | None:
        for keys, place in (
            (MODEL_KEYS, "a model"),
            (PROFILE_KEYS, "a profile"),
            (QUEUE_KEYS, "a model's queue"),
            (CATALOG_KEYS, "the top of the catalog"),
        ):
            if key in keys and keys is not here and key not in here:
                return f"it belongs in {place}"
        return None

    return hint


def _model(
    node: Node, problems: Problems, rules: Rules, *, index: int, taken: dict[str, At | None]
) -> Model | None:
    called = f"model {index + 1}"
    if not isinstance(node, nodes.Mapping):
        problems.add(
            node.at, f"{called} must be a mapping with name and profiles, not {shown(node)}"
        )
        return None
    called = f"model {name_of(node, str(index + 1))}"
    fields = Fields(node, problems, known=MODEL_KEYS, of=called, elsewhere=_belongs(MODEL_KEYS))
    fields.need("name", "it is what clients ask for")
    fields.need("profiles", "give it at least one way to run")
    name = fields.text("name")
    if name is not None:
        _claim_name(fields, "name", name, None, taken)
    aliases = fields.texts("aliases")
    for position, alias in enumerate(aliases or ()):
        _claim_name(fields, "aliases", alias, f"aliases[{position}]", taken)
    replicas = fields.whole("replicas", least=0, most=MOST_REPLICAS)
    priority = fields.whole("priority", least=-MOST_PRIORITY, most=MOST_PRIORITY)
    queue = _queue(fields, called)
    profiles = _profiles(fields, problems, rules, called)
    return Model(
        name=ModelName(name or called),
        profiles=profiles,
        aliases=aliases or (),
        replicas=1 if replicas is None else replicas,
        priority=priority or 0,
        queue=queue,
    )


def _claim_name(
    fields: Fields, key: str, name: str, part: str | None, taken: dict[str, At | None]
) -> None:
    """A model's name or alias: of the right form, and nobody else's."""
    at = fields.where(part or key)
    what = "alias" if part else "name"
    if not MODEL_NAME.fullmatch(name):
        fields.wrong(
            key,
            f"{what} {quoted(name)} can't be a model's: up to 128 letters, digits and . _ / -, "
            "beginning with a letter or digit",
            at if part else None,
        )
        return
    if name in taken:
        first = taken[name]
        where = f" on line {first.line}" if first else ""
        fields.wrong(
            key,
            f"{what} {quoted(name)} is taken already{where}: names and aliases are unique "
            "over the catalog",
            at if part else None,
        )
        return
    taken[name] = at


def _queue(fields: Fields, called: str) -> Queue:
    node = fields.node("queue")
    if node is None:
        return Queue()
    if not isinstance(node, nodes.Mapping):
        fields.wrong(
            "queue", f"queue must be a mapping, as {{size: 64, max_wait_s: 30}}, not {shown(node)}"
        )
        return Queue()
    inner = Fields(node, fields.problems, known=QUEUE_KEYS, of=f"the queue of {called}")
    size = inner.whole("size", least=0, most=MOST_WAITING)
    wait = inner.seconds("max_wait_s")
    return Queue(
        size=Queue().size if size is None else size,
        max_wait_s=Queue().max_wait_s if wait is None else wait,
    )


def _profiles(fields: Fields, problems: Problems, rules: Rules, called: str) -> tuple[Profile, ...]:
    node = fields.node("profiles")
    if node is None:
        return ()
    if not isinstance(node, List):
        fields.wrong("profiles", f"profiles must be a list, not {shown(node)}")
        return ()
    if not node.items:
        fields.wrong("profiles", f"{called} has no profiles: give it at least one way to run")
        return ()
    taken: dict[str, At | None] = {}
    read = [
        read_profile(
            item,
            problems,
            rules,
            index=index,
            model=called,
            taken=taken,
            elsewhere=_belongs(PROFILE_KEYS),
        )
        for index, item in enumerate(node.items)
    ]
    return tuple(profile for profile in read if profile is not None)


def model_to_json(model: Model) -> dict[str, object]:
    """A model by FORMATS' keys, in its order; what is at its default is left out."""
    written: dict[str, object] = {"name": model.name}
    if model.aliases:
        written["aliases"] = list(model.aliases)
    written["replicas"] = model.replicas
    if model.priority:
        written["priority"] = model.priority
    if model.queue != Queue():
        written["queue"] = {"size": model.queue.size, "max_wait_s": number(model.queue.max_wait_s)}
    written["profiles"] = [profile_to_json(profile) for profile in model.profiles]
    return written


def model_from_json(written: Mapping[str, object]) -> Model:
    """What `model_to_json` wrote, without asking engine rules; `Unusable` if it's no model."""
    problems = Problems("model")
    try:
        node = nodes.from_plain(dict(written))
    except NotReadable as error:
        raise Unusable(f"the model {error.message}") from None
    model = _model(node, problems, _no_rules, index=0, taken={})
    if problems or model is None:
        raise Unusable("the model can't be used", problems=problems.lines())
    return model


def catalog_to_json(catalog: Catalog) -> dict[str, object]:
    """The whole catalog; JSON is YAML, so `roost ctl apply` reads it."""
    return {"models": [model_to_json(model) for model in catalog.models]}


def _no_rules(_profile: Profile) -> tuple[()]:
    return ()
