"""Optimizers of one stage, with explicit state.

`state` is None before the first step; every step makes a NEW dict, so a state that was kept in a list stays what it was.
`step(w, g, lr) -> w_new`.  w and g are tuples of arrays (W, b).  `state["gradient"]` is the gradient stepped along
(L2 included where the optimizer adds it to the gradient; AdamW's decoupled decay is not in it).
"""

import numpy as np


def each(f, *tuples):
    return tuple(f(*arrays) for arrays in zip(*tuples))


class PlainSgd:
    """g += wd w;  w -= lr g.  (PyTorch's SGD with momentum 0: no buffer, dampening is ignored.)"""

    def __init__(self, weight_decay=0.0):
        self.weight_decay, self.state = weight_decay, None

    def step(self, w, g, lr):
        g = each(lambda w, g: g + self.weight_decay * w, w, g)
        self.state = {"gradient": g}
        return each(lambda w, g: w - lr * g, w, g)


class Momentum:
    """g += wd w;  m = g the first time, then m = u m + (1 - dampening) g;  w -= lr m.  Never Nesterov."""

    def __init__(self, momentum, dampening=0.0, weight_decay=0.0):
        self.momentum, self.dampening, self.weight_decay, self.state = momentum, dampening, weight_decay, None

    def step(self, w, g, lr):
        u, damp = self.momentum, self.dampening
        g = each(lambda w, g: g + self.weight_decay * w, w, g)
        if self.state is None:
            m = each(lambda g: g.copy(), g)
        else:
            m = each(lambda m, g: u * m + (1.0 - damp) * g, self.state["m"], g)
        self.state = {"m": m, "gradient": g}
        return each(lambda w, m: w - lr * m, w, m)


class Adam:
    """L2: g += wd w.  m, v, bias correction, eps outside the root."""

    decoupled = False

    def __init__(self, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        self.betas, self.eps, self.weight_decay, self.state = tuple(betas), eps, weight_decay, None

    def step(self, w, g, lr):
        b1, b2 = self.betas
        if self.decoupled:  # AdamW: w *= 1 - lr wd, BEFORE the Adam step
            w = each(lambda w: w * (1.0 - lr * self.weight_decay), w)
        else:
            g = each(lambda w, g: g + self.weight_decay * w, w, g)
        old = self.state or {"m": each(np.zeros_like, g), "v": each(np.zeros_like, g), "count": 0}
        m = each(lambda m, g: b1 * m + (1.0 - b1) * g, old["m"], g)
        v = each(lambda v, g: b2 * v + (1.0 - b2) * g * g, old["v"], g)
        self.state = {"m": m, "v": v, "count": old["count"] + 1, "gradient": g}
        return each(lambda w, d: w - lr * d, w, adam_direction(self, self.state))


class AdamW(Adam):
    decoupled = True


def make(specification):
    s = dict(specification)
    name, _ = s.pop("name"), s.pop("lr")
    if name in ("sgd", "sgdm"):
        if s.get("momentum", 0.0) == 0.0:
            s.pop("momentum", None), s.pop("dampening", None)
            return PlainSgd(**s)
        return Momentum(**s)
    return {"adam": Adam, "adamw": AdamW}[name](**s)  # weight_decay is 0 unless given, for both


# ---- what the papers say a prediction uses; None: no direction yet (or an optimizer that keeps no state to take one from)


def bias_corrected(state, betas):
    c = state["count"]
    return each(lambda m: m / (1.0 - betas[0] ** c), state["m"]), each(lambda v: v / (1.0 - betas[1] ** c), state["v"])


def adam_direction(optimizer, state):
    m_hat, v_hat = bias_corrected(state, optimizer.betas)
    return each(lambda m, v: m / (np.sqrt(v) + optimizer.eps), m_hat, v_hat)


def table_1_direction(optimizer, state):
    """PipeOptim, Table I, from the state after the optimizer's last step: SGDM m_t; Adam, AdamW m_hat / (sqrt(v_hat) + eps)."""
    if state is None or isinstance(optimizer, PlainSgd):
        return None
    if isinstance(optimizer, Momentum):
        return state["m"]
    return adam_direction(optimizer, state)


def table_1_direction_literal(optimizer, state):
    """Ambiguity D2, SGDM only: the last gradient (L2 included) counted once more: u m + (1 - dampening) g_last."""
    if state is not None and isinstance(optimizer, Momentum):
        return each(
            lambda m, g: optimizer.momentum * m + (1.0 - optimizer.dampening) * g, state["m"], state["gradient"]
        )
    return table_1_direction(optimizer, state)


def velocity(optimizer, state):
    """SpecTrain: the optimizer's own momentum buffer; for Adam and AdamW the first moment as it stands (not bias-corrected)."""
    if state is None or isinstance(optimizer, PlainSgd):
        return None
    return state["m"]


def xpipe_direction(state, betas, eps):
    """PipeOptim, equation 6 for XPipe with m and v put right (D1): m_bar / sqrt(v_bar + eps), eps INSIDE the root."""
    if state is None:
        return None
    m_bar, v_bar = bias_corrected(state, betas)
    return each(lambda m, v: m / np.sqrt(v + eps), m_bar, v_bar)
