import pytest
import torch
from torch.nn.functional import cross_entropy

from cirl import losses

B, N = 12, 5
r_o, r_a = torch.randn(2, B, N, dtype=torch.double, generator=torch.Generator().manual_seed(1)).unbind()
y = torch.arange(B) % 3
C = losses.correlation_matrix(r_o, r_a)


def test_z_score_has_zero_mean_and_unit_deviation_over_the_batch():
    z = losses.z_score(7 * r_o + 3)
    torch.testing.assert_close(z.mean(0), torch.zeros(N).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(z.std(0, unbiased=False), torch.ones(N).double(), atol=1e-5, rtol=0)


def test_z_score_of_a_constant_dimension_is_finite_and_so_is_its_gradient():
    R = torch.cat([torch.full((B, 1), 0.7), torch.randn(B, 2)], 1).requires_grad_()
    z = losses.z_score(R)
    (z * torch.randn(B, 3)).sum().backward()
    assert z.isfinite().all() and R.grad.isfinite().all()


def test_the_correlation_matrix_equals_a_naive_double_loop():
    for i in range(N):
        for j in range(N):
            a, b = r_o[:, i] - r_o[:, i].mean(), r_a[:, j] - r_a[:, j].mean()
            torch.testing.assert_close(C[i, j], a @ b / (a.norm() * b.norm()), atol=1e-5, rtol=0)


def test_correlations_lie_between_minus_one_and_one():
    assert C.abs().max() <= 1
    torch.testing.assert_close(
        losses.correlation_matrix(r_o, -r_o).diagonal(), -torch.ones(N).double(), atol=1e-5, rtol=0
    )


def test_the_correlation_matrix_does_not_feel_scale_and_shift_of_a_dimension():
    scale, shift = torch.rand(N) + 0.5, torch.randn(N)
    torch.testing.assert_close(losses.correlation_matrix(r_o * scale + shift, r_a * 3 - 1), C, atol=1e-4, rtol=0)


def test_the_unbiased_deviation_shrinks_correlations_by_one_part_in_B():
    torch.testing.assert_close(losses.correlation_matrix(r_o, r_a, unbiased=True), C * (B - 1) / B, atol=1e-5, rtol=0)


def test_invariance_is_one_for_identical_views():
    assert losses.invariance(losses.correlation_matrix(r_o, r_o)).item() == pytest.approx(1, abs=1e-5)


def test_redundancy_is_zero_for_orthogonal_columns_and_the_mean_off_diagonal_otherwise():
    orthogonal = torch.linalg.qr(r_o - r_o.mean(0))[0]  # centred, orthogonal columns
    assert losses.redundancy(losses.correlation_matrix(orthogonal, orthogonal)).abs() < 1e-6
    naive = sum(C[i, j] for i in range(N) for j in range(N) if i != j) / (N * (N - 1))
    torch.testing.assert_close(losses.redundancy(C), naive)


def test_factorization_loss_is_zero_for_identity():
    for loss in losses.FACTORIZATION.values():
        assert loss(torch.eye(N)).abs() < 1e-12


def test_factorization_losses_equal_their_double_sums():
    diagonal = [(C[i, i] - 1) ** 2 for i in range(N)]
    others = [C[i, j] ** 2 for i in range(N) for j in range(N) if i != j]
    expected = {
        "frobenius": 0.5 * (sum(diagonal) + sum(others)),
        "released": sum(diagonal) / N + 0.005 * sum(others) / len(others),
        "barlow": sum(diagonal) + 0.005 * sum(others),
    }
    for name, loss in losses.FACTORIZATION.items():
        torch.testing.assert_close(loss(C), expected[name])


def test_factorization_loss_is_half_the_squared_frobenius_norm():
    expected = 0.5 * torch.linalg.matrix_norm(C - torch.eye(N)) ** 2
    torch.testing.assert_close(losses.factorization_loss(C), expected)


def test_the_losses_leave_C_as_it_was():
    before = C.clone()
    for function in (*losses.FACTORIZATION.values(), losses.invariance, losses.redundancy):
        function(C)
    assert torch.equal(C, before)


def test_classification_loss_is_the_sum_of_two_cross_entropies():
    logits_o, logits_a = torch.randn(2, B, 3)
    naive = -sum(torch.log_softmax(logits, 1)[b, y[b]] for logits in (logits_o, logits_a) for b in range(B)) / B
    torch.testing.assert_close(losses.classification_loss(logits_o, logits_a, y), naive)


def test_masked_losses_with_a_mask_of_ones_give_equation_11_and_an_empty_rest():
    h1, h2 = torch.nn.Linear(N, 3).double(), torch.nn.Linear(N, 3).double()
    ones = torch.ones_like(r_o)
    L_sup, L_inf = losses.masked_losses(h1, h2, r_o, r_a, ones, ones, y)
    torch.testing.assert_close(L_sup, losses.classification_loss(h1(r_o), h1(r_a), y))
    torch.testing.assert_close(L_inf, 2 * cross_entropy(h2(torch.zeros_like(r_o)), y))


def test_superior_and_inferior_dimensions_complement_each_other():
    h = torch.nn.Linear(N, 3).double()
    m_o, m_a = torch.rand(2, B, N).double()
    L_sup, L_inf = losses.masked_losses(h, h, r_o, r_a, m_o, m_a, y)
    swapped = losses.masked_losses(h, h, r_o, r_a, 1 - m_o, 1 - m_a, y)
    torch.testing.assert_close((L_sup, L_inf), swapped[::-1])


def test_objectives_have_the_signs_of_equation_14():
    generator, masker = losses.objectives(torch.tensor(3.0), torch.tensor(2.0), torch.tensor(10.0), tau=0.5)
    assert (generator, masker) == (10.0, 1.0)
