#include "tests/specs/spec.h"

#include "amp/cast.h"

const struct amp_kernels *kernels;
struct amp_error fault;

int spec_setup(void **state)
{
    (void)state;
    return amp_cpu_select(NULL, &kernels, &fault);
}

struct amp_tensor spec_f32(const char *name, float *values, size_t count)
{
    return (struct amp_tensor){name, values, count, AMP_F32};
}

struct amp_tensor spec_null(const char *name)
{
    return (struct amp_tensor){name, NULL, 0, AMP_F32};
}

struct amp_tensor spec_tensor(struct spec_memory *memory, enum amp_dtype dtype, const float *values, size_t count)
{
    assert_true(count <= SPEC_ELEMENTS_MAX);
    amp_cast(kernels, memory->words, dtype, values, AMP_F32, count);
    return (struct amp_tensor){"t", memory->words, count, dtype};
}

float spec_at(const struct amp_tensor *tensor, size_t i)
{
    float value;
    const unsigned char *bytes = tensor->data;
    amp_cast(kernels, &value, AMP_F32, bytes + i * amp_dtype_size(tensor->dtype), tensor->dtype, 1);
    return value;
}

bool spec_holds(const struct amp_tensor *tensor, const float *values)
{
    for (size_t i = 0; i < tensor->count; i++) {
        float value = spec_at(tensor, i);
        if (memcmp(&value, &values[i], sizeof value) != 0)
            return false;
    }
    return true;
}

void spec_refused(int code, int expected, const char *word)
{
    assert_int_equal(code, expected);
    assert_int_equal(fault.code, expected);
    if (!strstr(fault.text, word))
        fail_msg("the text does not tell of \"%s\": %s", word, fault.text);
}
