// Every public header in one C++ program, and a function of each called: without extern "C" it would not link.
//
//     test_amp_cxx THIS_FILE HEADER...: each header is included here, and declares its functions as those of C.
#include "amp/autocast.h"
#include "amp/cast.h"
#include "amp/clip.h"
#include "amp/copy.h"
#include "amp/cpu.h"
#include "amp/dlpack.h"
#include "amp/dtype.h"
#include "amp/dynamic_scaler.h"
#include "amp/fsdp.h"
#include "amp/grad.h"
#include "amp/kernel_passes.h"
#include "amp/kernel_values.h"
#include "amp/kernels.h"
#include "amp/loss_scaler.h"
#include "amp/norm.h"
#include "amp/optim.h"
#include "amp/pass.h"
#include "amp/reduce.h"
#include "amp/registry.h"
#include "amp/scale_presets.h"
#include "amp/scaler.h"
#include "amp/static_scaler.h"
#include "amp/tensor.h"
#include "base/err.h"
#include "client/ampclient.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

static int failures;

static void check(bool holds, const char *what)
{
    if (holds)
        return;
    std::printf("does not hold: %s\n", what);
    failures++;
}

#define CHECK(WHAT) check(WHAT, #WHAT)

static void headers_without_scalers()
{
    amp_error error;
    const amp_kernels *kernels = nullptr;
    CHECK(amp_cpu_select("ref", &kernels, &error) == 0 && kernels == &amp_kernels_ref);
    float data[] = {3, -4}, copy[2];
    amp_tensor g = {"g", data, 2, AMP_F32};
    double norm = 0;
    bool found = true;
    CHECK(std::strcmp(amp_tensor_name(&g), "g") == 0 && amp_dtype_size(AMP_F16) == 2);
    CHECK(amp_grads_norm(kernels, &g, 1, AMP_CLIP_L2, &norm, &error) == 0 && norm == 5);
    CHECK(amp_grad_overflow(kernels, &g, &found, &error) == 0 && !found);
    amp_grads_measured measured = {};
    CHECK(amp_grads_measure(kernels, &g, 1, 2, 10, &measured, &error) == 0 && measured.norm == 2.5);
    CHECK(amp_real_power(0.5, 2) == 0.25);
    amp_copy_streamed(copy, data, sizeof copy);
    CHECK(std::memcmp(copy, data, sizeof copy) == 0);
    amp_tree tree;
    amp_tree_init(&tree);
    CHECK(amp_tree_sum(&tree) == 0);
    CHECK(amp_clip_coefficient(10, 5) == 1);
    amp_apply_stats stats = {};
    amp_apply_scalars scalars = {};
    CHECK(scalars.clip == 0);
    amp_pass_cast(kernels, 2, data, AMP_F32, false, copy, &stats);
    CHECK(stats.largest == 4);
    amp_cast(kernels, copy, AMP_F32, data, AMP_F32, 2);
    CHECK(copy[1] == -4);
    amp_registry registry;
    amp_registry_init(&registry);
    CHECK(amp_registry_allow(&registry, "my_op", &error) == 0);
    CHECK(!amp_autocast_active());
    struct amp_dlpack_import imported; // a function has this name too
    CHECK(amp_dlpack_import(nullptr, &imported, &error) == AMP_EINVAL);
    CHECK(std::strcmp(amp_strerror(AMP_EINVAL), "invalid argument") == 0);
}

static void scalers_and_the_client()
{
    amp_error error;
    float power = 0;
    CHECK(amp_scale_power_of_two(3, &power, &error) == 0 && power == 8);
    CHECK(std::strcmp(amp_scaler_policy_name(AMP_SCALER_DYNAMIC), "dynamic") == 0);
    amp_static_scaler fixed;
    CHECK(amp_static_scaler_init(&fixed, &amp_kernels_ref, AMP_SCALE_MODERATE, true, &error) == 0);
    amp_dynamic_scaler dynamic;
    CHECK(amp_dynamic_scaler_init(&dynamic, &amp_kernels_ref, nullptr, &error) == 0);
    amp_loss_scaler any = amp_dynamic_scaler_interface(&dynamic);
    CHECK(any.ops->scale(any.scaler) == 65536);
    CHECK(amp_loss_scaler_step(&any, nullptr, 0, nullptr, &error, nullptr, nullptr) == AMP_EINVAL);
    amp_fsdp_config config = amp_fsdp_config_default();
    CHECK(amp_fsdp_config_check(&config, &error) == 0);
    CHECK(amp_fsdp_config_preset(AMP_FSDP_BF16_PURE, &config, &error) == 0 && config.reduce_dtype == AMP_BF16);
    CHECK(amp_fsdp_before_forward(nullptr, nullptr, 0, &error) == AMP_EINVAL);
    ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    CHECK(options.size == sizeof options && options.log_cb == nullptr && spec.size == sizeof spec && spec.lr == 0);
    CHECK(join.size == sizeof join && join.rank == -1 && join.world_size == -1 && !join.units);
    static const ampclient_step step = AMPCLIENT_STEP_INIT;
    static const ampclient_result result = AMPCLIENT_RESULT_INIT;
    struct ampclient_status status = AMPCLIENT_STATUS_INIT; // a function has this name too
    ampclient_full full = {};
    full = AMPCLIENT_FULL_INIT;
    CHECK(step.size == sizeof step && result.size == sizeof result && status.size == sizeof status);
    CHECK(full.size == sizeof full && full.parameters_count == 0);
    uint32_t unit = 0;
    CHECK(ampclient_unit_add(nullptr, &unit, 1, &unit) == AMP_EINVAL && ampclient_gather(nullptr, 0) == AMP_EINVAL);
    CHECK(ampclient_prefetch(nullptr, 0) == AMP_EINVAL && ampclient_release(nullptr, 0) == AMP_EINVAL);
    CHECK(ampclient_scatter(nullptr, 0, nullptr, AMP_F16) == AMP_EINVAL && ampclient_drain(nullptr) == AMP_EINVAL);
    CHECK(ampclient_units_bytes(nullptr) == 0);
    CHECK(std::strcmp(ampclient_version(), AMPD_VERSION) == 0);
}

static std::string text_of(const char *path)
{
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// A header that is new has to be included above and to have extern "C".
static void every_public_header_is_here(int count, char **arguments)
{
    std::string here = text_of(arguments[1]);
    for (int i = 2; i < count; i++) {
        std::string path = arguments[i];
        size_t folder = path.rfind('/', path.rfind('/') - 1) + 1;
        bool included = here.find("#include \"" + path.substr(folder) + "\"") != std::string::npos;
        bool linkage = text_of(arguments[i]).find("\nextern \"C\" {\n") != std::string::npos;
        check(included, (path + " is included").c_str());
        check(linkage, (path + " has extern \"C\"").c_str());
    }
    CHECK(count > 20);
}

int main(int count, char **arguments)
{
    headers_without_scalers();
    scalers_and_the_client();
    every_public_header_is_here(count, arguments);
    return failures > 0;
}
