/* DLPack tensors in and out: what is taken, what is refused and left with its owner, and deleters called once. */
#include "amp/cpu.h"
#include "amp/dlpack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static unsigned deleted;

static void count_delete(struct amp_dlpack_managed *self)
{
    deleted++;
}

static void count_release(void *context)
{
    ++*(unsigned *)context;
}

struct foreign {
    float data[8];
    int64_t shape[3];
    int64_t strides[3];
    struct amp_dlpack_managed managed;
};

/* A 2 x 3 tensor of fp32 that begins at its second element. */
static void make_foreign(struct foreign *f)
{
    *f = (struct foreign){.data = {9, 1, 2, 3, 4, 5, 6, 9}, .shape = {2, 3, 0}, .strides = {3, 1, 0}};
    f->managed.version.major = 1;
    f->managed.version.minor = 3;
    f->managed.deleter = count_delete;
    f->managed.tensor.data = f->data;
    f->managed.tensor.device.type = AMP_DLPACK_CPU;
    f->managed.tensor.ndim = 2;
    f->managed.tensor.dtype.code = AMP_DLPACK_FLOAT;
    f->managed.tensor.dtype.bits = 32;
    f->managed.tensor.dtype.lanes = 1;
    f->managed.tensor.shape = f->shape;
    f->managed.tensor.strides = f->strides;
    f->managed.tensor.byte_offset = 4;
    deleted = 0;
}

static void a_tensor_is_taken_without_a_copy_and_released_once(void **state)
{
    struct foreign f;
    struct amp_dlpack_import import;
    make_foreign(&f);
    f.managed.flags = AMP_DLPACK_READ_ONLY;
    assert_int_equal(amp_dlpack_import(&f.managed, &import, NULL), 0);
    assert_ptr_equal(import.view.data, &f.data[1]);
    assert_int_equal(import.view.count, 6);
    assert_int_equal(import.view.dtype, AMP_F32);
    assert_true(import.read_only);
    assert_int_equal(deleted, 0);
    amp_dlpack_release(&import);
    amp_dlpack_release(&import);
    assert_int_equal(deleted, 1);
}

static void a_tensor_without_deleter_or_strides_is_taken(void **state)
{
    struct foreign f;
    struct amp_dlpack_import import;
    make_foreign(&f);
    f.managed.deleter = NULL;
    f.managed.tensor.strides = NULL;
    assert_int_equal(amp_dlpack_import(&f.managed, &import, NULL), 0);
    assert_false(import.read_only);
    amp_dlpack_release(&import);
    assert_null(import.managed);
}

static void every_float_dtype_is_known(void **state)
{
    static const struct {
        uint8_t code, bits;
        enum amp_dtype dtype;
    } rows[] = {{2, 16, AMP_F16}, {2, 32, AMP_F32}, {2, 64, AMP_F64}, {4, 16, AMP_BF16}};
    struct foreign f;
    struct amp_dlpack_import import;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make_foreign(&f);
        f.shape[0] = f.shape[1] = 1;
        f.managed.tensor.byte_offset = 0;
        f.managed.tensor.data = (void *)((uintptr_t)(f.data + 1) & ~(uintptr_t)7);
        f.managed.tensor.dtype.code = rows[i].code;
        f.managed.tensor.dtype.bits = rows[i].bits;
        assert_int_equal(amp_dlpack_import(&f.managed, &import, NULL), 0);
        assert_int_equal(import.view.dtype, rows[i].dtype);
        assert_int_equal(import.view.count, 1);
        amp_dlpack_release(&import);
    }
}

static void scalars_and_empty_tensors_are_taken(void **state)
{
    struct foreign f;
    struct amp_dlpack_import import;
    make_foreign(&f);
    f.managed.tensor.ndim = 0;
    f.managed.tensor.shape = f.managed.tensor.strides = NULL;
    assert_int_equal(amp_dlpack_import(&f.managed, &import, NULL), 0);
    assert_int_equal(import.view.count, 1);
    amp_dlpack_release(&import);
    make_foreign(&f);
    f.shape[0] = INT64_MAX;
    f.shape[1] = 0;
    f.managed.tensor.data = NULL;
    assert_int_equal(amp_dlpack_import(&f.managed, &import, NULL), 0);
    assert_int_equal(import.view.count, 0);
    amp_dlpack_release(&import);
    assert_int_equal(deleted, 1);
}

static void strides_of_dimensions_of_size_one_do_not_matter(void **state)
{
    struct foreign f;
    struct amp_dlpack_import import;
    make_foreign(&f);
    f.managed.tensor.ndim = 3;
    memcpy(f.shape, (int64_t[3]){2, 1, 3}, sizeof f.shape);
    memcpy(f.strides, (int64_t[3]){3, 77, 1}, sizeof f.strides);
    assert_int_equal(amp_dlpack_import(&f.managed, &import, NULL), 0);
    assert_int_equal(import.view.count, 6);
    amp_dlpack_release(&import);
}

static void refuse(struct foreign *f, int code, const char *word)
{
    struct amp_dlpack_import import;
    struct amp_error error;
    assert_int_equal(amp_dlpack_import(&f->managed, &import, &error), code);
    assert_non_null(strstr(error.text, word));
    assert_non_null(strstr(error.text, ": ")); /* the remedy is behind it */
    assert_null(import.managed);
    amp_dlpack_release(&import);
    assert_int_equal(deleted, 0); /* it is still its owner's */
    make_foreign(f);
}

static void what_cannot_be_taken_stays_with_its_owner(void **state)
{
    struct foreign f;
    make_foreign(&f);
    f.managed.version.major = 2;
    refuse(&f, AMP_EVERSION, "version 2");
    f.managed.tensor.device.type = 2;
    refuse(&f, AMP_EINVAL, "device type 2");
    f.managed.tensor.ndim = -1;
    refuse(&f, AMP_EINVAL, "dimensions");
    f.managed.tensor.ndim = AMP_DLPACK_NDIM_MAX + 1;
    refuse(&f, AMP_EINVAL, "dimensions");
    f.managed.tensor.shape = NULL;
    refuse(&f, AMP_EINVAL, "dimensions");
    f.managed.tensor.dtype.code = 0; /* an integer */
    refuse(&f, AMP_EINVAL, "type code 0");
    f.managed.tensor.dtype.code = 6; /* a bool */
    refuse(&f, AMP_EINVAL, "type code 6");
    f.managed.tensor.dtype.bits = 8;
    refuse(&f, AMP_EINVAL, "8 bits");
    f.managed.tensor.dtype.code = AMP_DLPACK_BFLOAT;
    refuse(&f, AMP_EINVAL, "type code 4");
    f.managed.tensor.dtype.lanes = 4;
    refuse(&f, AMP_EINVAL, "4 lanes");
    f.shape[0] = -2;
    refuse(&f, AMP_EINVAL, "dimension 0");
    f.shape[0] = INT64_MAX;
    refuse(&f, AMP_EINVAL, "more elements");
    memcpy(f.strides, (int64_t[3]){1, 2, 0}, sizeof f.strides); /* transposed */
    refuse(&f, AMP_EINVAL, "contiguous");
    f.managed.tensor.data = NULL;
    refuse(&f, AMP_EINVAL, "without an address");
    f.managed.tensor.byte_offset = 2;
    refuse(&f, AMP_EINVAL, "aligned");
    f.managed.tensor.byte_offset = UINT64_MAX;
    refuse(&f, AMP_EINVAL, "offset");
}

static void a_view_goes_out_with_its_shape_and_comes_back(void **state)
{
    uint16_t data[6] = {0x3f80, 0x4000, 0, 0, 0, 0x4040};
    struct amp_tensor_view view = {data, 6, AMP_BF16, 3, 4};
    struct amp_dlpack_managed *managed;
    struct amp_dlpack_import import;
    unsigned released = 0;
    assert_int_equal(amp_dlpack_export(&view, (int64_t[2]){2, 3}, 2, true, &released, count_release, &managed, NULL),
                     0);
    assert_int_equal(managed->version.major, 1);
    assert_int_equal(managed->tensor.dtype.code, AMP_DLPACK_BFLOAT);
    assert_int_equal(managed->tensor.dtype.bits, 16);
    assert_int_equal(managed->tensor.shape[1], 3);
    assert_int_equal(managed->tensor.strides[0], 3);
    assert_int_equal(managed->tensor.strides[1], 1);
    assert_int_equal(amp_dlpack_import(managed, &import, NULL), 0);
    assert_true(import.read_only);
    assert_ptr_equal(import.view.data, data);
    assert_int_equal(import.view.dtype, AMP_BF16);
    assert_int_equal(released, 0);
    amp_dlpack_release(&import);
    assert_int_equal(released, 1);
}

static void a_view_goes_out_flat_without_a_shape(void **state)
{
    float data[2] = {1, 2};
    struct amp_tensor_view view = {data, 2, AMP_F32, 0, 0}, empty = {data, 0, AMP_F64, 0, 0};
    struct amp_dlpack_managed *managed;
    assert_int_equal(amp_dlpack_export(&view, NULL, 0, false, NULL, NULL, &managed, NULL), 0);
    assert_int_equal(managed->tensor.ndim, 1);
    assert_int_equal(managed->tensor.shape[0], 2);
    assert_int_equal(managed->flags, 0);
    managed->deleter(managed);
    assert_int_equal(amp_dlpack_export(&empty, NULL, 0, false, NULL, NULL, &managed, NULL), 0);
    assert_null(managed->tensor.data);
    managed->deleter(managed);
}

static void a_view_that_does_not_fit_its_shape_stays_here(void **state)
{
    float data[6] = {0};
    int64_t many[AMP_DLPACK_NDIM_MAX + 1];
    struct amp_tensor_view view = {data, 6, AMP_F32, 0, 0}, index = {data, 6, AMP_DTYPE_NONE, 0, 0};
    struct amp_dlpack_managed *managed;
    unsigned released = 0;
    for (size_t i = 0; i <= AMP_DLPACK_NDIM_MAX; i++)
        many[i] = 1;
    assert_int_equal(amp_dlpack_export(&view, (int64_t[2]){2, 2}, 2, false, &released, count_release, &managed, NULL),
                     AMP_EINVAL);
    assert_null(managed);
    assert_int_equal(amp_dlpack_export(&view, (int64_t[1]){-6}, 1, false, &released, count_release, &managed, NULL),
                     AMP_EINVAL);
    assert_int_equal(amp_dlpack_export(&view, many, AMP_DLPACK_NDIM_MAX + 1, false, NULL, NULL, &managed, NULL),
                     AMP_EINVAL);
    assert_int_equal(amp_dlpack_export(&index, NULL, 0, false, &released, count_release, &managed, NULL), AMP_EINVAL);
    assert_int_equal(released, 0);
}

static void a_foreign_tensor_is_cast_like_any_other(void **state)
{
    struct foreign f;
    struct amp_dlpack_import import;
    struct amp_tensor_view out;
    uint16_t buffer[6];
    make_foreign(&f);
    assert_int_equal(amp_dlpack_import(&f.managed, &import, NULL), 0);
    assert_int_equal(amp_autocast_enter(AMP_AUTOCAST_FP16), 0);
    assert_int_equal(
        amp_autocast_cast(&amp_kernels_ref, "linear", &import.view, NULL, buffer, sizeof buffer, &out, NULL), 0);
    amp_autocast_exit();
    amp_dlpack_release(&import);
    assert_int_equal(buffer[0], 0x3c00);
    assert_int_equal(buffer[5], 0x4600);
}

static void count_delete_legacy(struct amp_dlpack_legacy *self)
{
    deleted++;
}

static void an_unversioned_tensor_is_taken_and_released_once(void **state)
{
    struct foreign f;
    struct amp_dlpack_import import;
    make_foreign(&f);
    struct amp_dlpack_legacy legacy = {.tensor = f.managed.tensor, .deleter = count_delete_legacy};
    assert_int_equal(amp_dlpack_import_legacy(&legacy, &import, NULL), 0);
    assert_ptr_equal(import.view.data, &f.data[1]);
    assert_int_equal(import.view.count, 6);
    assert_false(import.read_only);
    assert_ptr_equal(import.legacy, &legacy);
    amp_dlpack_release(&import);
    amp_dlpack_release(&import);
    assert_int_equal(deleted, 1);
    legacy.deleter = NULL;
    assert_int_equal(amp_dlpack_import_legacy(&legacy, &import, NULL), 0);
    amp_dlpack_release(&import);
    legacy.tensor.device.type = 2;
    assert_int_equal(amp_dlpack_import_legacy(&legacy, &import, NULL), AMP_EINVAL);
    assert_null(import.legacy);
}

static void a_view_goes_out_unversioned_and_comes_back(void **state)
{
    float data[6] = {1, 2, 3, 4, 5, 6};
    const int64_t shape[2] = {2, 3};
    struct amp_tensor_view view = {data, 6, AMP_F32, 7, 8};
    struct amp_dlpack_legacy *out;
    struct amp_dlpack_import import;
    unsigned released = 0;
    assert_int_equal(amp_dlpack_export_legacy(&view, shape, 2, &released, count_release, &out, NULL), 0);
    assert_int_equal(out->tensor.ndim, 2);
    assert_int_equal(out->tensor.strides[0], 3);
    assert_int_equal(amp_dlpack_import_legacy(out, &import, NULL), 0);
    assert_ptr_equal(import.view.data, data);
    amp_dlpack_release(&import);
    assert_int_equal(released, 1);
    view.count = 5;
    assert_int_equal(amp_dlpack_export_legacy(&view, shape, 2, &released, count_release, &out, NULL), AMP_EINVAL);
    assert_null(out);
    assert_int_equal(released, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_is_taken_without_a_copy_and_released_once),
        cmocka_unit_test(a_tensor_without_deleter_or_strides_is_taken),
        cmocka_unit_test(every_float_dtype_is_known),
        cmocka_unit_test(scalars_and_empty_tensors_are_taken),
        cmocka_unit_test(strides_of_dimensions_of_size_one_do_not_matter),
        cmocka_unit_test(what_cannot_be_taken_stays_with_its_owner),
        cmocka_unit_test(a_view_goes_out_with_its_shape_and_comes_back),
        cmocka_unit_test(a_view_goes_out_flat_without_a_shape),
        cmocka_unit_test(a_view_that_does_not_fit_its_shape_stays_here),
        cmocka_unit_test(a_foreign_tensor_is_cast_like_any_other),
        cmocka_unit_test(an_unversioned_tensor_is_taken_and_released_once),
        cmocka_unit_test(a_view_goes_out_unversioned_and_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
