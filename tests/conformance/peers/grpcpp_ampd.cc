// grpcpp_ampd TARGET [CA CERT KEY]: a worker on grpc++ against ampd: model, values, join, pull, push, verdict, history.
// With TLS, and a certificate of its own, if it gets the files. Each check is a line that test.sh counts; exit code 1
// if one failed.
#include "ampd/v1/parameter_service.grpc.pb.h"
#include "ampd/v1/scale_service.grpc.pb.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

using namespace ampd::v1;

static const char model_name[] = "grpcpp";
static const size_t elements = 64; // of the only block: one parameter of 4, padded to 64
static int failed;

static void check(bool good, const std::string &what, const std::string &detail = "")
{
    printf("[%s] grpcpp: %s\n", good ? "       OK " : "  FAILED  ", what.c_str());
    if (!good) {
        printf("%s\n", detail.c_str());
        failed = 1;
    }
}

static void check(const grpc::Status &status, const std::string &what)
{
    check(status.ok(), what, std::to_string(status.error_code()) + ": " + status.error_message());
}

// Each call has a context of its own, with a deadline.
struct Context : grpc::ClientContext {
    Context()
    {
        set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
        set_wait_for_ready(true);
    }
};

static uint32_t crc32c(const std::string &data)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (unsigned char byte : data) {
        crc ^= byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1u)));
    }
    return crc ^ 0xFFFFFFFFu;
}

// A block of fp32, the rest of it zero.
static std::string block_of(const std::vector<float> &values)
{
    std::string data(elements * sizeof(float), '\0');
    memcpy(&data[0], values.data(), values.size() * sizeof(float));
    return data;
}

template <class Request> static Request block_message(const std::string &data)
{
    Request request;
    request.set_index(0);
    request.set_crc32c(crc32c(data));
    request.set_data(data);
    return request;
}

class Worker
{
  public:
    explicit Worker(const std::shared_ptr<grpc::Channel> &channel)
        : params(ParameterService::NewStub(channel)), scales(ScaleService::NewStub(channel))
    {
    }

    void begin()
    {
        Context create, again;
        CreateModelRequest request;
        CreateModelResponse response;
        ModelSpec *spec = request.mutable_spec();
        spec->set_name(model_name);
        spec->set_world_size(1);
        spec->set_cast_dtype(DTYPE_F32);
        ParameterSpec *parameter = spec->add_parameters();
        parameter->set_name("w");
        parameter->add_shape(4);
        spec->mutable_optimizer()->set_kind(OPTIMIZER_KIND_SGD);
        spec->mutable_optimizer()->set_learning_rate(0.5);
        spec->mutable_scaler()->set_init_scale(1024);
        check(params->CreateModel(&create, request, &response), "a model is created");
        check(response.created(), "it is new");
        check(params->CreateModel(&again, request, &response), "the same again");
        check(!response.created(), "it was there");
    }

    void load(const std::vector<float> &values)
    {
        Context context;
        LoadResponse response;
        LoadRequest header;
        header.mutable_header()->set_model(model_name);
        auto writer = params->Load(&context, &response);
        bool sent = writer->Write(header) && writer->Write(block_message<LoadRequest>(block_of(values)));
        writer->WritesDone();
        grpc::Status status = writer->Finish();
        check(status, "values are loaded");
        check(sent, "all of them were sent");
    }

    void join()
    {
        Context context;
        JoinRequest request;
        request.set_model(model_name);
        request.set_worker_name("grpcpp");
        check(params->Join(&context, request, &joined), "a worker joins");
    }

    // The first four parameters that `step` computes on.
    std::array<float, 4> pull(uint64_t step)
    {
        Context context;
        PullRequest request;
        PullResponse response;
        std::array<float, 4> values = {};
        bool whole = false;
        request.set_model(model_name);
        request.set_epoch(joined.epoch());
        request.set_step(step);
        auto reader = params->Pull(&context, request);
        while (reader->Read(&response)) {
            if (response.has_header())
                pulled = response.header();
            if (response.has_index()) {
                whole = crc32c(response.data()) == response.crc32c() && response.data().size() == elements * 4;
                memcpy(values.data(), response.data().data(), sizeof values);
            }
        }
        check(reader->Finish(), "a pull of step " + std::to_string(step));
        check(whole, "its block has the length and the checksum that it should");
        return values;
    }

    StepResult push(const std::vector<float> &gradient)
    {
        Context context;
        PushRequest header;
        PushResponse response;
        PushHeader *head = header.mutable_header();
        head->set_model(model_name);
        head->set_epoch(pulled.epoch());
        head->set_step(pulled.step());
        head->set_rank(joined.rank());
        *head->mutable_incarnation() = joined.incarnation();
        head->set_scale_id(pulled.scale_id());
        head->set_dtype(DTYPE_F32);
        auto writer = params->Push(&context, &response);
        bool sent = writer->Write(header) && writer->Write(block_message<PushRequest>(block_of(gradient)));
        writer->WritesDone();
        grpc::Status status = writer->Finish();
        check(status, "a push");
        check(sent, "all of it was sent");
        return response.result();
    }

    void history()
    {
        Context context;
        ListScaleHistoryRequest request;
        ListScaleHistoryResponse response;
        std::string seen;
        request.set_model(model_name);
        check(scales->ListScaleHistory(&context, request, &response), "the history is read");
        for (const ScaleHistoryRow &row : response.rows())
            if (row.kind() == HISTORY_KIND_STEP)
                seen += Verdict_Name(row.verdict()) + " ";
        check(seen == "VERDICT_SKIPPED_OVERFLOW VERDICT_APPLIED ", "it has a skipped and an applied step", seen);
    }

    void errors()
    {
        Context absent;
        GetModelRequest request;
        GetModelResponse response;
        request.set_model("nobody");
        grpc::Status status = params->GetModel(&absent, request, &response);
        check(status.error_code() == grpc::StatusCode::NOT_FOUND, "an unknown model is NOT_FOUND");
        check(status.error_details().find("MODEL_NOT_FOUND") != std::string::npos, "its details have the reason");
    }

    void leave()
    {
        Context context;
        LeaveRequest request;
        LeaveResponse response;
        request.set_model(model_name);
        request.set_rank(joined.rank());
        *request.mutable_incarnation() = joined.incarnation();
        check(params->Leave(&context, request, &response), "the worker leaves");
    }

    JoinResponse joined;
    PullHeader pulled;

  private:
    std::unique_ptr<ParameterService::Stub> params;
    std::unique_ptr<ScaleService::Stub> scales;
};

static std::string read_file(const char *name)
{
    std::ifstream file(name);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

static std::shared_ptr<grpc::ChannelCredentials> credentials(int argc, char **argv)
{
    if (argc == 2)
        return grpc::InsecureChannelCredentials();
    grpc::SslCredentialsOptions files;
    files.pem_root_certs = read_file(argv[2]);
    files.pem_cert_chain = read_file(argv[3]);
    files.pem_private_key = read_file(argv[4]);
    return grpc::SslCredentials(files);
}

int main(int argc, char **argv)
{
    const std::array<float, 4> start = {1, 2, 3, 4};
    const std::array<float, 4> moved = {0.5, 1.5, 2.5, 3.5};
    if (argc != 2 && argc != 5) {
        fprintf(stderr, "usage: grpcpp_ampd TARGET [CA CERT KEY]\n");
        return 2;
    }
    Worker worker(grpc::CreateChannel(argv[1], credentials(argc, argv)));
    worker.begin();
    worker.load({1, 2, 3, 4});
    worker.join();
    uint64_t step = worker.joined.step();
    check(worker.pull(step) == start, "the values are those that were loaded");
    check(worker.pulled.scale() == 1024, "the scale is 1024");
    StepResult result = worker.push({INFINITY, 0, 0, 0});
    check(result.verdict() == VERDICT_SKIPPED_OVERFLOW && result.new_scale() == 512,
          "an Inf skips and halves the scale");
    check(worker.pull(step + 1) == start, "the values have not moved");
    result = worker.push({512, 512, 512, 512});
    check(result.verdict() == VERDICT_APPLIED && result.norm() == 2, "a gradient of ones is applied, with norm 2");
    check(worker.pull(step + 2) == moved, "the values have moved by the learning rate");
    worker.history();
    worker.errors();
    worker.leave();
    return failed;
}
