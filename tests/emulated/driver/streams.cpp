// Streams and events. Eager: work runs when it is given. Late: it waits until somebody waits for it, which shows what a
// program forgot to wait for.
#include <deque>
#include <set>

#include "emulated.h"

namespace emulated {

struct Stream {
    std::deque<Work> queue;
    unsigned long long given = 0, done = 0;
    bool blocking = true;  // waits for the default stream of its device, and that one for it
    int device = current_device();
};
struct Event {
    Stream* stream = nullptr;
    unsigned long long at = 0;
};

static Stream default_streams[DEVICES];
static std::set<Stream*> streams;

static Stream* default_of(int device) {
    default_streams[device].device = device;
    return &default_streams[device];
}

static Stream* of(void* handle) {
    bool is_default = handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
    return is_default ? default_of(current_device()) : (Stream*)handle;
}
int device_of_stream(void* handle) { return of(handle)->device; }

static void run_up_to(Stream* stream, unsigned long long at) {
    while (stream->done < at && !stream->queue.empty()) {
        Work work = std::move(stream->queue.front());
        stream->queue.pop_front();
        work.run();
        ++stream->done;
    }
}
static void finish(Stream* stream) { run_up_to(stream, stream->given); }

static void wait_for_streams(int device, bool blocking_alone) {
    finish(default_of(device));
    for (Stream* stream : streams)
        if (stream->device == device && (stream->blocking || !blocking_alone)) finish(stream);
}
void wait_for_blocking_streams() { wait_for_streams(current_device(), true); }
void wait_for_all() {
    for (int device = 0; device < DEVICES; ++device) wait_for_streams(device, false);
}
void wait_for(void* handle) {
    Stream* stream = of(handle);
    if (stream == default_of(stream->device)) wait_for_streams(stream->device, true);
    else finish(stream);
}

void submit(void* handle, Work work) {
    Stream* stream = of(handle);
    bool side = stream != default_of(stream->device);
    seen.side_streams += side || work.host;
    if (settings.late == IDLE) return;
    if (settings.late == EAGER || (settings.late == LATE_MAIN && side && !stream->blocking)) {
        finish(stream);
        work.run();
        return;
    }
    if (!side) {
        for (Stream* other : streams)
            if (other->blocking && other->device == stream->device) finish(other);
    } else if (stream->blocking) {
        finish(default_of(stream->device));
    }
    stream->queue.push_back(std::move(work));
    ++stream->given;
}

static bool touches(const Work& work, const void* host, size_t bytes) {
    auto from = (uintptr_t)work.host, asked = (uintptr_t)host;
    return work.host && from < asked + bytes && asked < from + work.bytes;
}
bool pending_on(const void* host, size_t bytes) {
    for (Stream& stream : default_streams)
        for (auto& work : stream.queue)
            if (touches(work, host, bytes)) return true;
    for (Stream* stream : streams)
        for (auto& work : stream->queue)
            if (touches(work, host, bytes)) return true;
    return false;
}

}  // namespace emulated
using namespace emulated;

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
    GUARD;
    auto* stream = new Stream;
    stream->blocking = !(flags & cudaStreamNonBlocking);
    streams.insert(stream);
    *out = (cudaStream_t)stream;
    return cudaSuccess;
}
API cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, 0); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
    return cudaStreamCreateWithFlags(out, flags);
}
API cudaError_t cudaStreamDestroy(cudaStream_t handle) {  // the object stays: events may still point to it
    GUARD;
    finish(of(handle));
    streams.erase((Stream*)handle);
    return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    GUARD;
    wait_for(handle);
    return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t handle) { return cudaStreamSynchronize(handle); }
API cudaError_t cudaDeviceSynchronize() {
    GUARD;
    wait_for_streams(current_device(), false);
    return cudaSuccess;
}
API cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
    *flags = of(handle)->blocking ? cudaStreamDefault : cudaStreamNonBlocking;
    return cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
    *priority = 0;
    return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_, unsigned) {
    GUARD;
    Event event = *(Event*)event_;  // as it was recorded last, whatever becomes of it
    if (event.stream && event.stream != of(handle)) submit(handle, {[event] { run_up_to(event.stream, event.at); }});
    return cudaSuccess;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
    *out = (cudaEvent_t) new Event;
    return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete (Event*)event;
    return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    GUARD;
    *(Event*)event = {of(handle), of(handle)->given};
    return cudaSuccess;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    GUARD;
    auto [stream, at] = *(Event*)event;
    if (stream) run_up_to(stream, at);
    return cudaSuccess;
}
API cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 1;  // there is no clock here: code that divides by it goes on
    return cudaSuccess;
}
