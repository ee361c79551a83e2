#include "tests/ep/quantized.h"

#include <math.h>
#include <string.h>

static double from_bf16(uint16_t value)
{
    const uint32_t bits = (uint32_t)value << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return (double)x;
}

/* The E4M3 value of 0 to 0x7E: 3 bits of fraction, bias 7. */
static double from_e4m3(int code)
{
    const int exponent = code >> 3, fraction = code & 7;
    return exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
}

/* The nearest by trying all; of two that are as near, the even one. */
static uint8_t to_e4m3(double x)
{
    int best = 0;
    if (isnan(x))
        return 0x7F;
    for (int code = 1; code <= 0x7E && isfinite(x); code++) {
        const double near = fabs(fabs(x) - from_e4m3(best)), here = fabs(fabs(x) - from_e4m3(code));
        if (here < near || (here == near && code % 2 == 0))
            best = code;
    }
    return (uint8_t)((isinf(x) ? 0x7E : best) | (signbit(x) ? 0x80 : 0));
}

/* Products of FP32 numbers are exact in double precision, or rounded to FP32 as if they were; so are quotients. */
float ref_quantize(const uint16_t values[QUANTIZED_VALUES], bool powers, uint8_t quantized[QUANTIZED_VALUES])
{
    double amax = (double)1e-4f;
    for (int i = 0; i < QUANTIZED_VALUES; i++)
        if (fabs(from_bf16(values[i])) > amax)
            amax = fabs(from_bf16(values[i]));
    double scale = (double)(float)(amax * (double)(float)(1.0 / 448.0)), factor = (double)(float)(448.0 / amax);
    if (powers) {
        int exponent = 0;
        const double fraction = frexp(scale, &exponent); /* in [0.5, 1) */
        if (isfinite(scale))
            scale = ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
        factor = 1.0 / scale;
    }
    for (int i = 0; i < QUANTIZED_VALUES; i++)
        quantized[i] = to_e4m3((double)(float)(factor * from_bf16(values[i])));
    return (float)scale;
}
