r"""CIRL: Causality Inspired Representation Learning for Domain Generalization (Lv et al., CVPR 2022).

The map of the paper, equation by equation:

    Eq.  4, 5, 6   fourier.amplitude_phase, mix_amplitude, recombine   (intervene: all three at once)
    Eq.  7, 8      losses.invariance, redundancy
    Eq.  9, 10     losses.correlation_matrix, factorization_loss
    Eq. 11         losses.classification_loss
    Eq. 12         model.Masker.forward
    Eq. 13, 14     losses.masked_losses, objectives
    Eq. 15         losses.z_score
    Eq. 16         gumbel.gumbel_mask
    Sec. 4.4       metrics.independence_degree, representation_importance

The package holds nouns (model, losses, data, runs); the notebooks hold verbs (train, compare, plot).
"""
