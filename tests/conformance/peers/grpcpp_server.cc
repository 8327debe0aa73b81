// grpcpp_server: ampd.test.v1.Echo on grpc++, for our client. Prints "port N"; ends with SIGTERM.
#include "echo.grpc.pb.h"

#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include <grpcpp/grpcpp.h>

using namespace ampd::test::v1;
using grpc::ServerContext;
using grpc::Status;

class EchoService final : public Echo::Service
{
  public:
    Status Unary(ServerContext *context, const Payload *request, Payload *response) override
    {
        for (const auto &field : context->client_metadata()) {
            std::string key(field.first.data(), field.first.size());
            std::string value(field.second.data(), field.second.size());
            if (key == "x-echo-initial")
                context->AddInitialMetadata(key, value);
            if (key == "x-echo-trailing-bin")
                context->AddTrailingMetadata(key, value);
        }
        *response = *request;
        return Status::OK;
    }

    Status Collect(ServerContext *, grpc::ServerReader<Payload> *reader, Summary *response) override
    {
        Payload payload;
        while (reader->Read(&payload)) {
            response->set_messages(response->messages() + 1);
            response->set_bytes(response->bytes() + payload.data().size());
        }
        return Status::OK;
    }

    Status Repeat(ServerContext *, const RepeatRequest *request, grpc::ServerWriter<Payload> *writer) override
    {
        Payload payload;
        payload.mutable_data()->resize(request->size());
        for (size_t i = 0; i < request->size(); i++)
            (*payload.mutable_data())[i] = static_cast<char>(i % 251);
        for (uint64_t i = 0; i < request->messages() && writer->Write(payload); i++)
            continue;
        return Status::OK;
    }

    Status Chat(ServerContext *, grpc::ServerReaderWriter<Payload, Payload> *stream) override
    {
        Payload payload;
        while (stream->Read(&payload) && stream->Write(payload))
            continue;
        return Status::OK;
    }

    Status Fail(ServerContext *, const FailRequest *request, grpc::ServerWriter<Payload> *writer) override
    {
        for (uint64_t i = 0; i < request->after(); i++)
            writer->Write(Payload());
        return Status(static_cast<grpc::StatusCode>(request->code()), request->message());
    }

    Status Sleep(ServerContext *context, const SleepRequest *request, Payload *) override
    {
        for (uint64_t ms = 0; ms < request->ms() && !context->IsCancelled(); ms += 10)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return Status::OK;
    }
};

int main()
{
    sigset_t set;
    int number;
    int port = 0;
    EchoService service;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&service);
    auto server = builder.BuildAndStart();
    if (server == nullptr)
        return 1;
    printf("port %d\n", port);
    fflush(stdout);
    sigwait(&set, &number);
    server->Shutdown(std::chrono::system_clock::now());
    return 0;
}
