from dataclasses import replace

import pytest

from engines.specs import spec
from roost.domain.profile import Engine, MetricNames
from roost.engines import adapter
from roost.engines.load_names import VLLM, completed, missing


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (MetricNames(), VLLM),
        (MetricNames(path="/m"), replace(VLLM, path="/m")),
        (MetricNames(kv_usage=("k",)), replace(VLLM, kv_usage=("k",))),
        (MetricNames(running=("r",)), MetricNames(running=("r",))),
        (MetricNames(running=("r",), waiting=("w",)), MetricNames(running=("r",), waiting=("w",))),
    ],
)
def test_an_empty_mapping_means_vllms_names_and_one_with_running_says_all(
    said: MetricNames, meant: MetricNames
) -> None:
    assert completed(said) == meant


@pytest.mark.parametrize("engine", list(Engine))
def test_the_servers_settings_win_over_every_engines_own_names(engine: Engine) -> None:
    mine = MetricNames(running=("r",))
    of = replace(spec(engine), metrics=mine)
    assert adapter(engine).metrics(of) == mine
    assert adapter(engine).metrics(spec(engine)) != mine


def test_a_command_without_names_is_not_measured() -> None:
    assert adapter(Engine.COMMAND).metrics(spec(Engine.COMMAND)) is None


@pytest.mark.parametrize(
    ("page", "lacks"),
    [
        ({"r1", "w", "k"}, ()),
        ({"r2", "w", "k"}, ()),
        ({"r1", "r2", "w"}, ("k",)),
        ({"w"}, ("r1 or r2", "k")),
        (set(), ("r1 or r2", "w", "k")),
    ],
)
def test_what_a_page_lacks_is_named_by_all_of_its_names(
    page: set[str], lacks: tuple[str, ...]
) -> None:
    """B035."""
    names = MetricNames(running=("r1", "r2"), waiting=("w",), kv_usage=("k",))
    assert missing(names, page) == lacks
    # Nobody looks for what has no name, or worries about what some builds lack.
    assert missing(MetricNames(), page) == ()
    assert missing(names, page, optional={"r1", "r2", "w", "k"}) == ()
    assert missing(names, page, optional={"r1"}) == lacks
