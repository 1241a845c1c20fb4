"""Makes transformer_xl.npz: what the published Transformer-XL computes, for tests/models/test_transformer_xl.py.

transformers dropped the model, so its numbers are kept. They were made on a CPU with python 3.11, torch 2.13.0,
transformers 4.33.3 and numpy 1.26.4, in an environment of its own:

    python3.11 -m venv old && old/bin/pip install transformers==4.33.3 torch==2.13.0 "numpy<2" sacremoses
    old/bin/python tests/reference/transformer_xl.py

All numbers are float32. Every case walks through consecutive segments of the same streams, and each segment gets
the memory that the one before it left behind. The names in the file:

    weight/NAME                 the weights of every case that has a parameter of this name. NAME is transformers':
        transformer.word_emb.emb_layers.0.weight      [V, D] the embedding, and the output's as well
        transformer.r_w_bias, transformer.r_r_bias    [H, D / H] u and v, where all layers share them
        transformer.layers.I.dec_attn.r_w_bias, .r_r_bias     u and v of a layer, where they do not
        transformer.layers.I.dec_attn.qkv_net.weight  [3 D, D] query, key, value, one below another
        transformer.layers.I.dec_attn.r_net.weight, .o_net.weight     [D, D] of distances and of the result
        transformer.layers.I.dec_attn.layer_norm.weight, .bias
        transformer.layers.I.pos_ff.CoreNet.0.weight, .bias, .CoreNet.3.weight, .bias, .layer_norm.weight, .bias
        crit.out_layers.0.bias                        [V]
        crit.cluster_weight, crit.cluster_bias        [clusters, D], [clusters] of an adaptive softmax
    CASE/memory                 [N, B, M, D] what the first segment found, for every depth; M is 0 for nothing
    CASE/S/tokens, CASE/S/answers    [B, T] what segment S reads, and what is to be predicted at every place
    CASE/S/hidden               [B, T, D] the last layer
    CASE/S/scores               [B, T, V] log probabilities
    CASE/S/losses               [B, T] in nats
    CASE/S/memory               [N, B, M, D] what the segment left behind, for every depth
    CASE/gradient/NAME          of the mean of the losses of all segments

    B 3 streams   T 5 places   D 16 width   H 2 heads   V 40 types   N 3 depth

The memory holds at most 6 places. CASES says how each case differs from a plain one.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch
from transformers import TransfoXLConfig, TransfoXLLMHeadModel

PATH = Path(__file__).with_suffix(".npz")
ROWS, LENGTH, VOCAB, DEPTH, DIM, MEMORY = 3, 5, 40, 3, 16, 6

# Case -> (segments, places of memory before the first one, what its configuration has). Places of memory before
# the first segment are zeros, which are seen: so transformers begins where it is given no memory.
CASES = {
    "plain": (2, 0, {}),
    "adaptive": (2, MEMORY, {"cutoffs": [10, 25]}),
    "same_length": (3, 0, {"same_length": True, "clamp_len": 4}),
    "untied": (2, 0, {"untie_r": True}),
}
PLAIN = {"cutoffs": [], "same_length": False, "clamp_len": -1, "untie_r": False}


def build(**changes: object) -> TransfoXLLMHeadModel:
    """A small model whose parameters are all different and none special."""
    config = TransfoXLConfig(
        vocab_size=VOCAB,
        d_model=DIM,
        d_embed=DIM,
        n_head=2,
        d_head=DIM // 2,
        d_inner=24,
        n_layer=DEPTH,
        mem_len=MEMORY,
        div_val=1,
        dropout=0.0,
        dropatt=0.0,
        trainer_compatible=True,
        **PLAIN | changes,
    )
    model = TransfoXLLMHeadModel(config)
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # A generator for every name: cases that share a parameter share its value.
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            centre = 1.0 if name.endswith("layer_norm.weight") else 0.0
            parameter.copy_(centre + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def stack(memory: list[torch.Tensor]) -> torch.Tensor:
    """[M, B, D] of every depth to [N, B, M, D]."""
    return torch.stack(memory).transpose(1, 2)


def losses(model: TransfoXLLMHeadModel, hidden: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """The model's own, which predict from each place the token of the next: so the answers move up by one."""
    after = torch.cat([hidden, hidden[:, :1]], 1)
    before = torch.cat([answers[:, :1], answers], 1)
    return model.crit(after, before, keep_order=True).view(answers.shape)


def case(segments: int, found: int, changes: dict[str, object]) -> tuple[TransfoXLLMHeadModel, dict[str, torch.Tensor]]:
    model = build(**changes).train()
    streams = torch.randint(0, VOCAB, (ROWS, segments * LENGTH + 1), generator=torch.Generator().manual_seed(1))
    memory = [torch.zeros(found, ROWS, DIM) for _ in range(DEPTH)]
    said, total = {"memory": stack(memory)}, torch.zeros(())
    for number in range(segments):
        here = slice(number * LENGTH, (number + 1) * LENGTH)
        tokens, answers = streams[:, here], streams[:, 1:][:, here]
        out = model.transformer(tokens, mems=memory)
        hidden, memory = out.last_hidden_state, out.mems
        lost = losses(model, hidden, answers)
        scores = model.crit(hidden).view(ROWS, LENGTH, VOCAB)
        torch.testing.assert_close(lost, -scores.gather(2, answers[..., None]).squeeze(2))
        total = total + lost.sum()
        segment = {"tokens": tokens, "answers": answers, "hidden": hidden, "scores": scores, "losses": lost}
        said |= {f"{number}/{name}": value for name, value in (segment | {"memory": stack(memory)}).items()}
    (total / (segments * ROWS * LENGTH)).backward()
    said |= {f"gradient/{name}": parameter.grad for name, parameter in model.named_parameters()}
    return model, said


def main() -> None:
    kept = {}
    for name, what in CASES.items():
        model, said = case(*what)
        kept |= {f"weight/{key}": value for key, value in model.named_parameters()}
        kept |= {f"{name}/{key}": value for key, value in said.items()}
    arrays = {name: value.detach().numpy() for name, value in kept.items()}
    assert all(array.dtype in (np.float32, np.int64) for array in arrays.values())
    np.savez_compressed(PATH, **arrays)


if __name__ == "__main__":
    main()
