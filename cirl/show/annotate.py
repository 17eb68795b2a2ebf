r"""The equations of the paper beside the functions that compute them, for the tour."""

import inspect
from collections.abc import Callable

from IPython.display import HTML, Code

from cirl import fourier, gumbel, losses, model

EQUATIONS: dict[int, tuple[str, Callable]] = {  # number -> as printed, and the function
    4: (r"\mathcal F(x^o) = \mathcal A(x^o)\, e^{-j \mathcal P(x^o)}", fourier.amplitude_phase),
    5: (r"\hat{\mathcal A}(x^o) = (1-\lambda)\,\mathcal A(x^o) + \lambda\,\mathcal A((x')^o)", fourier.mix_amplitude),
    6: (r"\mathcal F(x^a) = \hat{\mathcal A}(x^o)\, e^{-j \mathcal P(x^o)}", fourier.recombine),
    7: (r"\max_{\hat g} \frac1N \sum_{i=1}^N \mathrm{COR}(\tilde r_i^o, \tilde r_i^a)", losses.invariance),
    8: (
        r"\min_{\hat g} \frac1{N(N-1)} \sum_{i \ne j} \mathrm{COR}(\tilde r_i^o, \tilde r_j^a)",
        losses.redundancy,
    ),
    9: (
        r"C_{ij} = \frac{\langle \tilde r_i^o, \tilde r_j^a\rangle}{\|\tilde r_i^o\|\,\|\tilde r_j^a\|}",
        losses.correlation_matrix,
    ),
    10: (r"\mathcal L_{Fac} = \tfrac12 \|C - I\|_F^2", losses.factorization_loss),
    11: (r"\mathcal L_{cls} = \ell(\hat h(r^o), y) + \ell(\hat h(r^a), y)", losses.classification_loss),
    12: (r"m = \text{Gumbel-Softmax}(\hat w(r), \kappa N)", model.Masker.forward),
    13: (
        r"\begin{aligned} \mathcal L_{sup} &= \ell(\hat h_1(r^o \odot m^o), y) + \ell(\hat h_1(r^a \odot m^a), y) \\"
        r"\mathcal L_{inf} &= \ell(\hat h_2(r^o \odot (1 - m^o)), y) \\ &\quad + \ell(\hat h_2(r^a \odot (1 - m^a)), y)"
        r"\end{aligned}",
        losses.masked_losses,
    ),
    14: (
        r"\begin{aligned} \min_{\hat g, \hat h_1, \hat h_2}\ & \mathcal L_{sup} + \mathcal L_{inf}"
        r"+ \tau \mathcal L_{Fac} \\ \min_{\hat w}\ & \mathcal L_{sup} - \mathcal L_{inf} \end{aligned}",
        losses.objectives,
    ),
    15: (r"\tilde r_i = (r_i - \mu_i) / \sigma_i", losses.z_score),
    16: (
        r"m_j = \max_{l \le k} \frac{\exp((\log z_j + \xi_j^l) / T)}{\sum_i \exp((\log z_i + \xi_i^l) / T)}",
        gumbel.independent,
    ),
}
TABLE = "width: 100%; table-layout: fixed; border-collapse: collapse;"
CODE = "white-space: pre-wrap; word-break: normal; font-size: .85em; line-height: 1.35;"  # breaks between words only
CELL = "text-align: left; vertical-align: top; padding: .4rem .8rem; overflow-x: auto; border-top: 1px solid #ddd;"


def beside(*items: int | tuple[str, Callable]) -> HTML:
    """One line per item: an equation and the source of its function.

    An item is the number of an equation, or a text and a function."""
    lines = [
        (f"Eq. {item}: $${EQUATIONS[item][0]}$$", EQUATIONS[item][1]) if isinstance(item, int) else item
        for item in items
    ]
    rows = "".join(
        f'<tr><td style="{CELL} width: 38%">{words}</td><td style="{CELL}">{source(function)}</td></tr>'
        for words, function in lines
    )
    return HTML(f'<table style="{TABLE}">{rows}</table>')


def source(function: Callable) -> str:
    """The module of a function and its source, highlighted."""
    text = inspect.cleandoc("\n" + inspect.getsource(function))
    code = Code(text, language="python")._repr_html_().replace("<pre>", f'<pre style="{CODE}">')
    return f"<small><code>{function.__module__}</code></small>{code}"
