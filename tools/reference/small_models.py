"""What the small random transformers models of the goldens have in common."""
import torch


def rope(kind="default", theta=100.0, **scaling):
    # A small base turns even the slowest pair of a small head by a good part of a circle within the sequence.
    return {"rope_type": kind, "rope_theta": theta, **scaling}


def randomise(model, generator):
    """Draws every parameter again, large enough that gradients stand far above rounding; norm weights and biases too,
    because ones and zeros would hide mistakes."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight") or ".ln_" in name and name.endswith(".weight"):
                parameter.copy_(1 + 0.3 * noise)
            elif name.endswith(("embed_tokens.weight", "wte.weight", "wpe.weight")):
                parameter.copy_(0.4 * noise)
            else:
                parameter.copy_(0.2 * noise)
