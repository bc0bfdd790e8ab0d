/* Integer kernels as one writes them without thinking of a processor, to compare with: channels last, products of bytes
 * added in 32 bits, each sum requantized as it is finished. */

#include <stdint.h>

static inline int8_t requantize(int32_t sum, int32_t multiplier, int32_t shift, int left, int32_t zero, int32_t low,
                                int32_t high)
{
    const int bits = 33 + shift;
    const int64_t product = (int64_t)(int32_t)((uint32_t)sum << left) * multiplier;
    int32_t y = (int32_t)((product + ((int64_t)1 << (bits - 1))) >> bits) + zero;
    y = y < low ? low : y;
    return (int8_t)(y > high ? high : y);
}

/* the part of a window that begins at `start` and lies inside of 0 ... size */
static inline int first(int start)
{
    return start < 0 ? -start : 0;
}

static inline int last(int start, int kernel, int size)
{
    return start + kernel > size ? size - start : kernel;
}

/* weights [o][kh][kw][c] */
static __attribute__((noinline, unused)) void conv(const int8_t *x, const int8_t *weights, const int32_t *bias, const int32_t *multiplier,
                 const int32_t *shift, int8_t *y, int h, int w, int c, int oh, int ow, int o, int kh, int kw, int sh,
                 int sw, int ph, int pw, int32_t zero_x, int left, int32_t zero, int32_t low, int32_t high)
{
    for (int i = 0; i < oh; ++i)
        for (int j = 0; j < ow; ++j)
            for (int n = 0; n < o; ++n) {
                int32_t sum = bias[n];
                for (int p = first(i * sh - ph); p < last(i * sh - ph, kh, h); ++p)
                    for (int q = first(j * sw - pw); q < last(j * sw - pw, kw, w); ++q) {
                        const int8_t *from = x + ((i * sh + p - ph) * w + j * sw + q - pw) * c;
                        const int8_t *with = weights + ((n * kh + p) * kw + q) * c;
                        for (int k = 0; k < c; ++k)
                            sum += (from[k] - zero_x) * with[k];
                    }
                y[(i * ow + j) * o + n] = requantize(sum, multiplier[n], shift[n], left, zero, low, high);
            }
}

/* weights [kh][kw][c] */
static __attribute__((noinline, unused)) void depthwise(const int8_t *x, const int8_t *weights, const int32_t *bias, const int32_t *multiplier,
                      const int32_t *shift, int8_t *y, int h, int w, int c, int oh, int ow, int o, int kh, int kw,
                      int sh, int sw, int ph, int pw, int32_t zero_x, int left, int32_t zero, int32_t low, int32_t high)
{
    for (int i = 0; i < oh; ++i)
        for (int j = 0; j < ow; ++j)
            for (int n = 0; n < o; ++n) {
                int32_t sum = bias[n];
                for (int p = first(i * sh - ph); p < last(i * sh - ph, kh, h); ++p)
                    for (int q = first(j * sw - pw); q < last(j * sw - pw, kw, w); ++q)
                        sum += (x[((i * sh + p - ph) * w + j * sw + q - pw) * c + n] - zero_x) *
                               weights[(p * kw + q) * c + n];
                y[(i * ow + j) * o + n] = requantize(sum, multiplier[n], shift[n], left, zero, low, high);
            }
}

static __attribute__((noinline, unused)) void mean(const int8_t *x, int8_t *y, int count, int c, const int32_t *bias, const int32_t *multiplier,
                 const int32_t *shift, int left, int32_t zero, int32_t low, int32_t high)
{
    for (int n = 0; n < c; ++n) {
        int32_t sum = bias[n];
        for (int i = 0; i < count; ++i)
            sum += x[i * c + n];
        y[n] = requantize(sum, multiplier[n], shift[n], left, zero, low, high);
    }
}

static __attribute__((noinline, unused)) void add(const int8_t *x, const int8_t *y, int8_t *z, int count, int32_t mx, int32_t my, int32_t offset,
                int shift, int32_t zero, int32_t low, int32_t high)
{
    for (int i = 0; i < count; ++i) {
        const int32_t sum = x[i] * mx + y[i] * my + offset;
        int32_t r = ((sum + ((1 << (shift - 1)) - 1) + ((sum >> shift) & 1)) >> shift) + zero;
        r = r < low ? low : r;
        z[i] = (int8_t)(r > high ? high : r);
    }
}

static __attribute__((noinline, unused)) void max_pool(const int8_t *x, int8_t *y, int h, int w, int c, int oh, int ow, int kh, int kw, int sh, int sw,
                     int ph, int pw)
{
    for (int i = 0; i < oh; ++i)
        for (int j = 0; j < ow; ++j)
            for (int n = 0; n < c; ++n) {
                int8_t best = -128;
                for (int p = 0; p < kh; ++p)
                    for (int q = 0; q < kw; ++q) {
                        const int row = i * sh + p - ph, column = j * sw + q - pw;
                        if (row >= 0 && row < h && column >= 0 && column < w && x[(row * w + column) * c + n] > best)
                            best = x[(row * w + column) * c + n];
                    }
                y[(i * ow + j) * c + n] = best;
            }
}

static __attribute__((noinline, unused)) void transpose(const int8_t *x, int8_t *y, int a, int b, int c, int d, int sa, int sb, int sc, int sd)
{
    for (int i = 0; i < a; ++i)
        for (int j = 0; j < b; ++j)
            for (int k = 0; k < c; ++k)
                for (int l = 0; l < d; ++l)
                    *y++ = x[i * sa + j * sb + k * sc + l * sd];
}

static __attribute__((noinline, unused)) void copy_bytes(const int8_t *x, int8_t *y, int count)
{
    for (int i = 0; i < count; ++i)
        y[i] = x[i];
}
