"""What surrounds vLLM, without a GPU: weights by name, requests and results as vLLM's types, refusals."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from mapo.config import Lora
from mapo.errors import InputError, TrainError
from mapo.local_model.policy import load_policy
from mapo.models.chat import Request
from mapo.sampling.vllm.engine import check_vllm, sampled_reply, sampling_params, weights_of
from mapo.types import Message
from support import small_run, tiny


def request(**changes):
    return Request((Message("user", "Hello"),), **changes)


def test_weights_have_the_names_of_the_checkpoint():
    model = tiny.model("qwen2", tie_word_embeddings=False)
    weights = dict(weights_of(model))
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in weights.items())


def test_tied_embeddings_come_once():
    names = [name for name, _ in weights_of(tiny.model("llama", tie_word_embeddings=True))]
    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names


def test_adapters_are_merged_into_weights_of_the_base_model(tmp_path):
    folder = small_run.model_folder(tmp_path)
    policy = load_policy(str(folder), lora=Lora(rank=4, alpha=8.0), device="cpu")
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    merged = dict(weights_of(policy.model))
    base = load_policy(str(folder), device="cpu").model.state_dict()
    expected = policy.model.merge_and_unload().state_dict()
    assert merged.keys() == expected.keys()
    for name, weight in merged.items():
        torch.testing.assert_close(weight, expected[name])
    changed = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.allclose(merged[changed], base[changed])


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_the_install_command_is_named():
    with pytest.raises(InputError, match=r"not installed.*mapo-rl\[vllm\]"):
        check_vllm("auto")


@pytest.mark.filterwarnings("default")
def test_a_cpu_is_refused(monkeypatch):
    monkeypatch.setattr("mapo.sampling.vllm.engine.find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="none was found"):
        check_vllm("auto")


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
class TestTypes:
    """Requests and results in vLLM's own types."""

    def test_a_request_ends_at_the_end_ids_only_and_has_its_own_seed(self):
        params = sampling_params(request(temperature=0.7, top_p=0.9, max_tokens=30, seed=5), {9, 3})
        assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.7, 0.9, 30, 5)
        assert (params.stop_token_ids, params.ignore_eos) == ([3, 9], True)
        assert (params.logprobs, params.detokenize) == (0, False)

    def test_seeds_of_64_bits_fit(self):
        assert 0 <= sampling_params(request(seed=2**64 - 1), {3}).seed < 2**63

    def test_temperature_0_is_greedy(self):
        params = sampling_params(request(temperature=0.0, top_p=0.5), {3})
        assert (params.temperature, params.top_p) == (0.0, 1.0)

    def output(self, finish="stop", logprob=-0.5):
        from vllm.logprobs import Logprob
        from vllm.outputs import CompletionOutput, RequestOutput

        places = [{7: Logprob(-1.5, rank=2)}, {3: Logprob(logprob, rank=1)}]
        completion = CompletionOutput(0, "", [7, 3], -2.0, places, finish_reason=finish)
        return RequestOutput("12", None, [1, 2], None, [completion], True, num_cached_tokens=1)

    def test_a_result_has_the_sampled_ids_and_their_logprobs(self):
        reply = sampled_reply(self.output())
        assert (reply.key, reply.ids, reply.logprobs, reply.cached) == ("12", [7, 3], [-1.5, -0.5], 1)

    def test_logits_that_are_not_numbers_end_the_run(self):
        with pytest.raises(TrainError, match="NaN"):
            sampled_reply(self.output(logprob=float("nan")))

    def test_an_aborted_reply_is_an_error(self):
        with pytest.raises(TrainError, match="abort"):
            sampled_reply(self.output(finish="abort"))
