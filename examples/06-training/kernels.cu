#include <oxshmem/oxshmem.h>

// Threads of a grid that share out `n` values.
#define FOR_EACH(i, n) for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += uint64_t{gridDim.x} * blockDim.x)

// The values of a layer: out[s][o] is the sum of in[s][i] * weights[i][o], or 0 if that is negative
// and the layer `rectifies`.
OXSHMEM_BOUNDED_KERNEL(256, forward, const float *in, const float *weights, float *out, uint64_t samples, uint64_t inputs,
                       uint64_t outputs, uint32_t rectifies) {
    FOR_EACH(at, samples * outputs) {
        const uint64_t s = at / outputs, o = at % outputs;
        float sum = 0;
        for (uint64_t i = 0; i < inputs; ++i) {
            sum += in[s * inputs + i] * weights[i * outputs + o];
        }
        out[at] = rectifies != 0 && sum < 0 ? 0 : sum;
    }
}

// The gradient of the mean squared error, by the results: `scale` is 2 divided by the number of
// results of all PEs.
OXSHMEM_BOUNDED_KERNEL(256, error, const float *results, const float *wanted, float *gradient, uint64_t n, float scale) {
    FOR_EACH(i, n) {
        gradient[i] = (results[i] - wanted[i]) * scale;
    }
}

// The gradient by a layer's weights, from that by its results: this PE's samples alone.
OXSHMEM_BOUNDED_KERNEL(256, by_weights, const float *in, const float *by_results, float *gradient, uint64_t samples,
                       uint64_t inputs, uint64_t outputs) {
    FOR_EACH(at, inputs * outputs) {
        const uint64_t i = at / outputs, o = at % outputs;
        float sum = 0;
        for (uint64_t s = 0; s < samples; ++s) {
            sum += in[s * inputs + i] * by_results[s * outputs + o];
        }
        gradient[at] = sum;
    }
}

// The gradient by the values of the rectified layer before: 0 where that has cut off a value.
OXSHMEM_BOUNDED_KERNEL(256, by_inputs, const float *in, const float *by_results, const float *weights, float *gradient,
                       uint64_t samples, uint64_t inputs, uint64_t outputs) {
    FOR_EACH(at, samples * inputs) {
        const uint64_t s = at / inputs, i = at % inputs;
        float sum = 0;
        for (uint64_t o = 0; o < outputs; ++o) {
            sum += by_results[s * outputs + o] * weights[i * outputs + o];
        }
        gradient[at] = in[at] > 0 ? sum : 0;
    }
}

// A step down the gradient.
OXSHMEM_BOUNDED_KERNEL(256, descend, float *weights, const float *gradient, uint64_t n, float rate) {
    FOR_EACH(i, n) {
        weights[i] -= rate * gradient[i];
    }
}
