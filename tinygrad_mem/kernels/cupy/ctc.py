"""Connectionist temporal classification, one thread per sample. As in ``kernels/numpy/ctc.py``."""

from __future__ import annotations

from .fused import LOG_ADD, Fused

_SAMPLE = """
    const ptrdiff_t many = spans[count + i], start = spans[2 * count + i], states = 2 * many + 1, width = rows / 6 / count;
    ptrdiff_t length = spans[i];
    const T none = -__int_as_float(0x7f800000);
    const ptrdiff_t slot = (ptrdiff_t)count * width;
    #define LABEL(s) (((s) & 1) ? (ptrdiff_t)targets[start + (s) / 2] : (ptrdiff_t)blank)
    #define X(t, s) x[((t) * count + i) * classes + LABEL(s)]
    #define SUM(t, s) sums[((t) % kept) * slot + i * width + 2 + (s)]
    #define MAY_SKIP(s) (((s) & 1) && (s) >= 3 && LABEL(s) != LABEL((s) - 2))
"""
_SUMS = """
    bool wrong = false;  // a label outside of the classes gives nan
    for (ptrdiff_t s = 1; s < states; s += 2) wrong = wrong || LABEL(s) < 0 || LABEL(s) >= classes;
    T loss = many ? -none : (T)0;
    if (wrong) { loss = none - none; length = 0; }
    for (ptrdiff_t t = 0; t < length; ++t)
        for (ptrdiff_t s = 0; s < states; ++s) {
            if (t == 0) { SUM(t, s) = s < 2 ? (T)X(t, s) : none; continue; }
            T total = SUM(t - 1, s);
            if (s >= 1) total = log_add(total, (T)SUM(t - 1, s - 1));
            if (MAY_SKIP(s)) total = log_add(total, (T)SUM(t - 1, s - 2));
            SUM(t, s) = total + X(t, s);
        }
    if (length > 0) {
        const T last = SUM(length - 1, 2 * many);
        loss = -(many ? log_add(last, (T)SUM(length - 1, 2 * many - 1)) : last);
    }
"""
_loss = Fused(
    "raw T x, raw L targets, raw int64 spans, int64 blank, bool zero, int64 rows, int64 kept, int64 count, int64 classes",
    "raw T sums, raw T out",
    f"{_SAMPLE}{_SUMS}    out[i] = zero && isinf(loss) && loss > 0 ? (T)0 : loss;",
    "tinygrad_mem_ctc_loss",
    preamble=LOG_ADD,
)
_gradient = Fused(
    "raw T gy, raw T x, raw L targets, raw int64 spans, int64 blank, bool zero, int64 rows, int64 kept, int64 count, "
    "int64 classes, int64 all",
    "raw T sums, raw T work, raw T out",
    f"{_SAMPLE}{_SUMS}"
    + """
    #define OUT(t, c) out[((t) * count + i) * classes + (c)]
    #define LATER(t, s) work[((t) & 1) * slot + i * width + (s)]
    const ptrdiff_t counted = wrong ? spans[i] : length;
    const bool lost = isinf(loss) && loss > 0;
    const T g = gy[i];
    for (ptrdiff_t t = all - 1; t >= 0; --t) {
        if (t >= counted || wrong || lost) {
            const T fill = t >= counted || (lost && zero) ? (T)0 : none - none;
            for (ptrdiff_t c = 0; c < classes; ++c) OUT(t, c) = fill;
            continue;
        }
        for (ptrdiff_t c = 0; c < classes; ++c) OUT(t, c) = exp(x[(t * count + i) * classes + c]);
        for (ptrdiff_t s = 0; s < states; ++s) {
            T total = none;
            if (t == length - 1) total = s >= states - 2 ? (T)0 : none;
            else {
                total = LATER(t + 1, s);
                if (s + 1 < states) total = log_add(total, (T)LATER(t + 1, s + 1));
                if (s + 2 < states && MAY_SKIP(s + 2)) total = log_add(total, (T)LATER(t + 1, s + 2));
            }
            LATER(t, s) = t == length - 1 && s < states - 2 ? none : total + X(t, s);
            OUT(t, LABEL(s)) -= exp(SUM(t, s) + total + loss);
        }
        for (ptrdiff_t c = 0; c < classes; ++c) OUT(t, c) *= g;
    }
    """,
    "tinygrad_mem_ctc_loss_backward",
    preamble=LOG_ADD,
)


def ctc_loss(x, targets, spans, blank, zero_infinity, sums, rows, labels, row, out):
    count, classes = x.shape[1:]
    if count:
        kept = max(len(sums), 1)
        _loss(x, targets, spans, blank, zero_infinity, rows.size, kept, count, classes, sums, out, size=count)


def ctc_loss_backward(gy, x, targets, spans, blank, zero_infinity, sums, rows, labels, row, out):
    total, count, classes = x.shape
    if count:
        sizes = (rows.size, max(len(sums), 1), count, classes, total)
        _gradient(gy, x, targets, spans, blank, zero_infinity, *sizes, sums, rows, out, size=count)
