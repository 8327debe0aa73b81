// The grpc++ peer of the rpc rows: an echo service and its client, each as fast as grpc++ can be had.
//
//     grpcpp_peer serve ADDRESS [sync]            prints "port N" ("port 0" of unix:PATH) and serves until stdin ends
//     grpcpp_peer unary ADDRESS CALLS for each line on stdin makes CALLS calls of 64 bytes, one after another,
//                                                 and prints their median and their 99th percentile in seconds
//     grpcpp_peer push|pull ADDRESS BYTES for each line on stdin moves BYTES in messages of 1 MiB and prints the
//     seconds
//
// Messages are byte buffers without a codec around them: nothing is parsed, and a sender's bytes are not copied before
// grpc++ does it. The receiver adds up all words, as tcp_pump's does; a push is acknowledged with that sum, a pull is
// compared in place. The server's methods are of the callback API, or with `sync` of the blocking one; the client's are
// blocking, since a thread that waits for its own answer is what grpc++ is quickest with.
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace
{

using grpc::ByteBuffer;
using grpc::Slice;
using grpc::Status;
using grpc::internal::RpcMethod;

constexpr size_t kMessageBytes = 1 << 20;
constexpr size_t kUnaryBytes = 64;
// One tensor of the push rows; both ends send the same bytes, again and again.
constexpr size_t kPayloadBytes = 64 << 20;
// Windows and frames far beyond the defaults, and no probing: one choice for bulk, not the best of a sweep.
constexpr int kWindowBytes = 16 << 20;
constexpr int kFrameBytes = 4 << 20;
constexpr int kReadChunkBytes = 1 << 20;
constexpr auto kDeadline = std::chrono::seconds(60);

const char *const kNames[] = {"/ampd.bench.Peer/Unary", "/ampd.bench.Peer/Push", "/ampd.bench.Peer/Pull"};

std::vector<uint64_t> payload(kPayloadBytes / sizeof(uint64_t));

void fill_payload()
{
    for (size_t i = 0; i < payload.size(); i++)
        payload[i] = i * 0x9e3779b97f4a7c15u;
}

ByteBuffer message_at(uint64_t offset)
{
    const auto *bytes = reinterpret_cast<const char *>(payload.data()) + offset % kPayloadBytes;
    Slice slice(bytes, kMessageBytes, Slice::STATIC_SLICE);
    return ByteBuffer(&slice, 1);
}

// The sum of a stream's words, wherever its pieces begin.
class Sum
{
  public:
    void add(const ByteBuffer &buffer)
    {
        slices_.clear();
        (void)buffer.Dump(&slices_);
        for (const Slice &slice : slices_)
            add(slice.begin(), slice.size());
    }
    uint64_t value() const
    {
        return sum_;
    }
    uint64_t bytes() const
    {
        return bytes_;
    }

  private:
    void add(const uint8_t *data, size_t size)
    {
        bytes_ += size;
        while (size > 0 && kept_ > 0) {
            word_[kept_++] = *data++;
            size--;
            if (kept_ < sizeof word_)
                continue;
            add_words(word_, 1);
            kept_ = 0;
        }
        add_words(data, size / sizeof(uint64_t));
        size_t rest = size % sizeof(uint64_t);
        memcpy(word_ + kept_, data + size - rest, rest);
        kept_ += rest;
    }
    void add_words(const uint8_t *data, size_t count)
    {
        uint64_t sum = 0;
        for (size_t i = 0; i < count; i++) {
            uint64_t word;
            memcpy(&word, data + i * sizeof word, sizeof word);
            sum += word;
        }
        sum_ += sum;
    }

    std::vector<Slice> slices_;
    uint8_t word_[sizeof(uint64_t)];
    size_t kept_ = 0;
    uint64_t sum_ = 0;
    uint64_t bytes_ = 0;
};

uint64_t expected_sum(uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes / sizeof(uint64_t); i++)
        sum += payload[i % payload.size()];
    return sum;
}

ByteBuffer of_number(uint64_t number)
{
    Slice slice(&number, sizeof number);
    return ByteBuffer(&slice, 1);
}

uint64_t to_number(const ByteBuffer &buffer)
{
    Slice slice;
    uint64_t number = 0;
    if (buffer.DumpToSingleSlice(&slice).ok() && slice.size() == sizeof number)
        memcpy(&number, slice.begin(), sizeof number);
    return number;
}

class Pushed : public grpc::ServerReadReactor<ByteBuffer>
{
  public:
    explicit Pushed(ByteBuffer *answer) : answer_(answer)
    {
        StartRead(&message_);
    }
    void OnReadDone(bool ok) override
    {
        if (!ok) {
            *answer_ = of_number(sum_.value());
            Finish(Status::OK);
            return;
        }
        sum_.add(message_);
        StartRead(&message_);
    }
    void OnDone() override
    {
        delete this;
    }

  private:
    ByteBuffer *answer_;
    ByteBuffer message_;
    Sum sum_;
};

class Pulled : public grpc::ServerWriteReactor<ByteBuffer>
{
  public:
    explicit Pulled(uint64_t bytes) : bytes_(bytes)
    {
        next();
    }
    void OnWriteDone(bool ok) override
    {
        if (ok)
            next();
        else
            Finish(Status::CANCELLED);
    }
    void OnDone() override
    {
        delete this;
    }

  private:
    void next()
    {
        if (sent_ >= bytes_) {
            Finish(Status::OK);
            return;
        }
        message_ = message_at(sent_);
        sent_ += kMessageBytes;
        StartWrite(&message_);
    }

    uint64_t bytes_;
    uint64_t sent_ = 0;
    ByteBuffer message_;
};

// As generated code has it, but with byte buffers.
class Callback : public grpc::Service
{
  public:
    Callback()
    {
        const RpcMethod::RpcType types[] = {RpcMethod::NORMAL_RPC, RpcMethod::CLIENT_STREAMING,
                                            RpcMethod::SERVER_STREAMING};
        for (int i = 0; i < 3; i++)
            AddMethod(new grpc::internal::RpcServiceMethod(kNames[i], types[i], nullptr));
        using Context = grpc::CallbackServerContext;
        MarkMethodRawCallback(0, new grpc::internal::CallbackUnaryHandler<ByteBuffer, ByteBuffer>(
                                     [](Context *context, const ByteBuffer *request, ByteBuffer *response) {
                                         *response = *request;
                                         auto *reactor = context->DefaultReactor();
                                         reactor->Finish(Status::OK);
                                         return reactor;
                                     }));
        MarkMethodRawCallback(1, new grpc::internal::CallbackClientStreamingHandler<ByteBuffer, ByteBuffer>(
                                     [](Context *, ByteBuffer *response) { return new Pushed(response); }));
        MarkMethodRawCallback(
            2, new grpc::internal::CallbackServerStreamingHandler<ByteBuffer, ByteBuffer>(
                   [](Context *, const ByteBuffer *request) { return new Pulled(to_number(*request)); }));
    }
};

class Sync : public grpc::Service
{
  public:
    Sync()
    {
        using Context = grpc::ServerContext;
        AddMethod(new grpc::internal::RpcServiceMethod(
            kNames[0], RpcMethod::NORMAL_RPC,
            new grpc::internal::RpcMethodHandler<Sync, ByteBuffer, ByteBuffer, ByteBuffer, ByteBuffer>(
                [](Sync *, Context *, const ByteBuffer *request, ByteBuffer *response) {
                    *response = *request;
                    return Status::OK;
                },
                this)));
        AddMethod(new grpc::internal::RpcServiceMethod(
            kNames[1], RpcMethod::CLIENT_STREAMING,
            new grpc::internal::ClientStreamingHandler<Sync, ByteBuffer, ByteBuffer>(
                [](Sync *, Context *, grpc::ServerReader<ByteBuffer> *reader, ByteBuffer *response) {
                    ByteBuffer message;
                    Sum sum;
                    while (reader->Read(&message))
                        sum.add(message);
                    *response = of_number(sum.value());
                    return Status::OK;
                },
                this)));
        AddMethod(new grpc::internal::RpcServiceMethod(
            kNames[2], RpcMethod::SERVER_STREAMING,
            new grpc::internal::ServerStreamingHandler<Sync, ByteBuffer, ByteBuffer>(
                [](Sync *, Context *, const ByteBuffer *request, grpc::ServerWriter<ByteBuffer> *writer) {
                    uint64_t bytes = to_number(*request);
                    for (uint64_t sent = 0; sent < bytes; sent += kMessageBytes)
                        if (!writer->Write(message_at(sent)))
                            return Status::CANCELLED;
                    return Status::OK;
                },
                this)));
    }
};

int serve(const std::string &address, bool sync)
{
    Callback callback;
    Sync blocking;
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(sync ? static_cast<grpc::Service *>(&blocking) : &callback);
    builder.SetMaxMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunkBytes);
    builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 * kReadChunkBytes);
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (!server) {
        fprintf(stderr, "grpcpp_peer: cannot listen on %s\n", address.c_str());
        return 1;
    }
    printf("port %d\n", port);
    fflush(stdout);
    for (std::string line; std::getline(std::cin, line);)
        ;
    server->Shutdown(std::chrono::system_clock::now());
    return 0;
}

void check(const Status &status)
{
    if (status.ok())
        return;
    fprintf(stderr, "grpcpp_peer: status %d: %s\n", status.error_code(), status.error_message().c_str());
    exit(1);
}

double seconds_since(std::chrono::steady_clock::time_point begin)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void call_unary(grpc::Channel *channel, uint64_t calls)
{
    const RpcMethod method(kNames[0], RpcMethod::NORMAL_RPC);
    std::vector<double> times;
    Slice slice(payload.data(), kUnaryBytes, Slice::STATIC_SLICE);
    for (uint64_t i = 0; i < calls; i++) {
        auto begin = std::chrono::steady_clock::now();
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + kDeadline);
        ByteBuffer request(&slice, 1), response;
        check(grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer>(channel, method, &context, request, &response));
        times.push_back(seconds_since(begin));
        if (response.Length() != kUnaryBytes)
            check(Status(grpc::INTERNAL, "the answer is not the request"));
    }
    std::sort(times.begin(), times.end());
    printf("%.9f %.9f\n", times[times.size() / 2], times[times.size() * 99 / 100]);
}

void push(grpc::Channel *channel, uint64_t bytes, uint64_t expected)
{
    const RpcMethod method(kNames[1], RpcMethod::CLIENT_STREAMING);
    auto begin = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    ByteBuffer answer;
    std::unique_ptr<grpc::ClientWriter<ByteBuffer>> writer(
        grpc::internal::ClientWriterFactory<ByteBuffer>::Create(channel, method, &context, &answer));
    bool open = true;
    for (uint64_t sent = 0; open && sent < bytes; sent += kMessageBytes)
        open = writer->Write(message_at(sent));
    (void)writer->WritesDone();
    check(writer->Finish());
    printf("%.9f\n", seconds_since(begin));
    if (to_number(answer) != expected)
        check(Status(grpc::INTERNAL, "the bytes that arrived are not those sent"));
}

void pull(grpc::Channel *channel, uint64_t bytes, uint64_t expected)
{
    const RpcMethod method(kNames[2], RpcMethod::SERVER_STREAMING);
    auto begin = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    std::unique_ptr<grpc::ClientReader<ByteBuffer>> reader(
        grpc::internal::ClientReaderFactory<ByteBuffer>::Create(channel, method, &context, of_number(bytes)));
    ByteBuffer message;
    Sum sum;
    while (reader->Read(&message))
        sum.add(message);
    check(reader->Finish());
    printf("%.9f\n", seconds_since(begin));
    if (sum.bytes() != bytes || sum.value() != expected)
        check(Status(grpc::INTERNAL, "the bytes that arrived are not those sent"));
}

int drive(const std::string &what, const std::string &address, uint64_t number)
{
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunkBytes);
    arguments.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 * kReadChunkBytes);
    auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    uint64_t expected = what == "unary" ? 0 : expected_sum(number);
    for (std::string line; std::getline(std::cin, line);) {
        if (what == "unary")
            call_unary(channel.get(), number);
        else if (what == "push")
            push(channel.get(), number, expected);
        else
            pull(channel.get(), number, expected);
        fflush(stdout);
    }
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    std::string what = argc > 2 ? argv[1] : "";
    fill_payload();
    if (what == "serve" && (argc == 3 || (argc == 4 && strcmp(argv[3], "sync") == 0)))
        return serve(argv[2], argc == 4);
    uint64_t number = argc == 4 ? strtoull(argv[3], nullptr, 10) : 0;
    bool bulk = (what == "push" || what == "pull") && number % kMessageBytes == 0;
    if (number > 0 && (bulk || what == "unary"))
        return drive(what, argv[2], number);
    fprintf(stderr,
            "usage: grpcpp_peer serve ADDRESS [sync] | unary ADDRESS CALLS | push|pull ADDRESS BYTES\n"
            "BYTES is a multiple of %zu\n",
            kMessageBytes);
    return 2;
}
