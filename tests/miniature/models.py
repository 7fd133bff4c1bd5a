"""Tiny members of the family: random weights, or a few steps of training."""

import dataclasses

import torch

from benchmarks.miniature import pretrain, shapes
from benchmarks.miniature.pretrain import Branch, Plan, Run
from benchmarks.miniature.rows import Mixture, tokenizer

TINY = {
    "tiny-qwen3": shapes.Shape("qwen3", 32, 2, 2, 48),
    "tiny-nemotron": shapes.Shape("nemotron", 32, 2, 2, 48),
    "tiny-qwen35": shapes.Shape("qwen3_5", 32, 4, 2, 48),
    "tiny-draft": shapes.Shape("qwen3", 16, 1, 1, 24),
}
FEW = Mixture(rows=4)
END = Branch("end", 3, 3)


def config(name):
    return shapes.config(TINY[name], tokenizer().get_vocab())


def random_model(name, seed=0, spread=6.0):
    """A model in training whose weights are far enough from their start that every part matters."""
    model = pretrain.make(TINY[name].layout, config(name), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.module.parameters():
            if weight.dim() == 2:
                weight.mul_(spread)
            elif weight.dim() == 1:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
            weight.copy_(weight.to(torch.bfloat16))  # what a checkpoint holds
    return model


def written(name, folder, seed=0):
    """A random checkpoint -> its folder."""
    pretrain.export(random_model(name, seed).tensors(), config(name), folder, {"steps": 0})
    return folder


def run(name, folder, branch=END, watch=lambda line: None, mixture=FEW):
    """A training run of a tiny model, every state stored."""
    return Run(dataclasses.replace(Plan(name, (branch,)), mixture=mixture), folder, watch)
