"""Optimizers as docs/numerics.md writes them, in Python's doubles, rounded to fp32 where the formulas round."""
import math

from ampd_testing import f32


def power(base, exponent):
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result = result * base
        base = base * base
        exponent >>= 1
    return result


class Sgd:
    def __init__(self, values, rate, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
        self.p, self.buffer = [f32(value) for value in values], None
        self.rate, self.momentum, self.dampening = rate, momentum, dampening
        self.weight_decay, self.nesterov = weight_decay, nesterov

    def apply(self, gradient, coefficient=1.0):
        old, self.buffer = self.buffer, []
        for i, (p, g) in enumerate(zip(self.p, gradient)):
            d = f32(g * coefficient) + self.weight_decay * p
            if self.momentum > 0:
                held = d if old is None else self.momentum * old[i] + (1 - self.dampening) * d
                self.buffer.append(f32(held))
                d = d + self.momentum * held if self.nesterov else held
            self.p[i] = f32(p - self.rate * d)
        if self.momentum == 0:
            self.buffer = None


def error_of(x):
    """How far fp32(x) is from x, in units of 2^-24 of x."""
    return 0.0 if x == 0 else abs(f32(x) / x - 1) * 2.0 ** 24


def guard(b1, b2, rate, epsilon, decay=0.0, coupled=False):
    """(fresh, keep) of the test for single precision."""
    terms = max(error_of(b1), error_of(1 - b1) + coupled) + 1
    square = max(error_of(b2) + 1, error_of(1 - b2) + 2 * coupled + 2) + 1
    divisor = max(square / 2 + 1, error_of(epsilon)) + 1
    update = terms + 1 + error_of(rate) + 1 + divisor + 1 + (decay != 0)
    keep = (2 - 2 * (error_of(decay) + 2) * decay) / update
    return f32(2 * terms / update * rate), f32(keep) if keep > 0 and epsilon >= 2.0 ** -40 else 0.0


def is_small(p, divisor, rated, fresh_m, scalars):
    fresh, keep = scalars
    power = 2.0 ** (math.frexp(p)[1] - 1) if abs(p) >= 2.0 ** -126 else 0.0
    return f32(f32(power * divisor) * keep) >= f32(f32(abs(rated) + f32(fresh * abs(fresh_m))) + 2.0 ** -100)


class AdamW:
    def __init__(self, values, rate, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01):
        self.p, self.t = [f32(value) for value in values], 0
        self.m, self.v = [0.0] * len(values), [0.0] * len(values)
        self.rate, self.beta1, self.beta2, self.epsilon, self.weight_decay = rate, beta1, beta2, epsilon, weight_decay

    def apply(self, gradient, coefficient=1.0):
        self.t += 1
        root = math.sqrt(1 - power(self.beta2, self.t))
        rate = self.rate * root / (1 - power(self.beta1, self.t))
        epsilon, decay = self.epsilon * root, self.rate * self.weight_decay
        for i, g in enumerate(gradient):
            self._element(i, f32(g * coefficient), rate, epsilon, decay)

    def _element(self, i, c, rate, epsilon, decay):
        p, m, v, b1, b2 = self.p[i], self.m[i], self.v[i], self.beta1, self.beta2
        rho1, rho2 = 1 - b1, 1 - b2
        bm, pc = f32(f32(b1) * m), f32(f32(rho1) * c)
        new_m = f32(bm + pc)
        new_v = f32(f32(f32(b2) * v) + f32(f32(rho2) * f32(c * c)))
        d = f32(f32(math.sqrt(new_v)) + f32(epsilon))
        rated = f32(f32(rate) * new_m)
        if is_small(p, d, rated, pc, guard(b1, b2, rate, epsilon, decay)):
            self.p[i] = f32(p - f32(f32(rated / d) + f32(f32(decay) * p)))
        else:
            m1, v1 = b1 * m + rho1 * c, b2 * v + rho2 * (c * c)
            self.p[i] = f32(p - (rate * m1 / (math.sqrt(v1) + epsilon) + decay * p))
        self.m[i], self.v[i] = new_m, new_v


class Double:
    """Optimizers that compute in double throughout, and round what they store: `rule` gives p, m and v of one element."""

    def __init__(self, values, rule, weight_decay=0.0):
        self.p, self.t, self.rule, self.weight_decay = [f32(value) for value in values], 0, rule, weight_decay
        self.m, self.v = [0.0] * len(values), [0.0] * len(values)

    def apply(self, gradient, coefficient=1.0):
        self.t += 1
        for i, g in enumerate(gradient):
            c = f32(g * coefficient)
            d = c + self.weight_decay * self.p[i] if self.weight_decay != 0 else c
            after = self.rule(self.t, self.p[i], self.m[i], self.v[i], d)
            self.p[i], self.m[i], self.v[i] = map(f32, after)


def adagrad(rate, decay, epsilon=1e-10):
    def rule(t, p, m, v, d):
        m = m + d * d
        return p - (rate / (1 + (t - 1) * decay) * d) / (math.sqrt(m) + epsilon), m, v
    return rule


def rmsprop(rate, alpha=0.99, epsilon=1e-8, momentum=0.0, centered=False):
    def rule(_t, p, m, v, d):
        m = alpha * m + (1 - alpha) * (d * d)
        mean = m
        if centered:
            v = alpha * v + (1 - alpha) * d
            mean = max(m - v * v, 0.0)
        q = d / (math.sqrt(mean) + epsilon)
        if momentum > 0:
            q = v = momentum * v + q
        return p - rate * q, m, v
    return rule


def lion(rate, beta1, beta2, decay):
    def rule(_t, p, m, v, c):
        a = beta1 * m + (1 - beta1) * c
        step = rate if a > 0 else -rate if a < 0 else a
        return p - (step + rate * decay * p), beta2 * m + (1 - beta2) * c, v
    return rule


class Adam(AdamW):
    """With coupled decay, of which fp32(d) is in the moments and d itself in the master."""

    def apply(self, gradient, coefficient=1.0):
        self.t += 1
        root = math.sqrt(1 - power(self.beta2, self.t))
        rate = self.rate * root / (1 - power(self.beta1, self.t))
        for i, g in enumerate(gradient):
            c = f32(g * coefficient)
            self._adam(i, c + self.weight_decay * self.p[i] if self.weight_decay != 0 else c, rate, self.epsilon * root)

    def _adam(self, i, d, rate, epsilon):
        p, m, v, b1, b2, c = self.p[i], self.m[i], self.v[i], self.beta1, self.beta2, f32(d)
        rho1, rho2 = 1 - b1, 1 - b2
        bm, pc = f32(f32(b1) * m), f32(f32(rho1) * c)
        new_m, new_v = f32(bm + pc), f32(f32(f32(b2) * v) + f32(f32(rho2) * f32(c * c)))
        divisor, rated = f32(f32(math.sqrt(new_v)) + f32(epsilon)), f32(f32(rate) * new_m)
        if is_small(p, divisor, rated, pc, guard(b1, b2, rate, epsilon, coupled=self.weight_decay != 0)):
            self.p[i] = f32(p - f32(rated / divisor))
        else:
            m1, v1 = b1 * m + rho1 * d, b2 * v + rho2 * (d * d)
            self.p[i] = f32(p - rate * m1 / (math.sqrt(v1) + epsilon))
        self.m[i], self.v[i] = new_m, new_v
