from dataclasses import replace

import pytest

from engines.specs import spec
from roost.domain.profile import Engine, MetricNames
from roost.engines import adapter
from roost.engines.load_names import VLLM, completed


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
