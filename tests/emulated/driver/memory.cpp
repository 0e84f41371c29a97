// Device memory, pinned memory, copies. What lies beyond each piece that the pool has given is forbidden to kernels.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "emulated.h"

namespace emulated {

static const size_t PAGE = 4096, ROOM = size_t(1) << 36;  // addresses, not memory: pages that are used cost memory
static uintptr_t start = 0, next_place = 0;
static uint8_t* shadow = nullptr;
static std::map<uintptr_t, size_t> allocated, pinned;
static std::map<uintptr_t, int> owners;  // where a block begins -> its device
static size_t used[DEVICES];

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static void* reserve(size_t bytes, int access) {
    void* found = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? nullptr : found;
}

static bool open() {
    if (start) return true;
    void* memory = reserve(ROOM, PROT_NONE);
    shadow = (uint8_t*)reserve(ROOM / 8, PROT_READ | PROT_WRITE);
    if (!memory || !shadow) return false;
    start = (uintptr_t)memory;
    next_place = start + SHARED_ROOM + PAGE;
    mprotect(memory, SHARED_ROOM, PROT_READ | PROT_WRITE);
    forbid(start, SHARED_ROOM, NEVER_GIVEN);
    return true;
}

uintptr_t shared_memory() {
    open();
    return start;
}

bool in_device_memory(const void* address) { return start && (uintptr_t)address - start < ROOM; }

static bool inside(const std::map<uintptr_t, size_t>& blocks, const void* address) {
    auto after = blocks.upper_bound((uintptr_t)address);
    if (after == blocks.begin()) return false;
    --after;
    return (uintptr_t)address < after->first + after->second;
}
bool is_allocated(const void* address) { return inside(allocated, address); }
int device_of(const void* address) { return std::prev(owners.upper_bound((uintptr_t)address))->second; }
void want_here(const std::string& who, const void* address) {
    if (is_allocated(address) && device_of(address) != current_device())
        problem(who + " on device " + std::to_string(current_device()) + ": memory of device " + std::to_string(device_of(address)));
}

void allow(uintptr_t address, size_t bytes) {
    uint8_t* at = shadow + (address - start) / 8;
    memset(at, 0, bytes / 8);
    if (bytes % 8) at[bytes / 8] = bytes % 8;
}

// From the first whole 8 bytes on: a piece that ends within 8 bytes has told its length in the shadow byte.
void forbid(uintptr_t address, size_t bytes, uint8_t why) {
    uintptr_t from = (address + 7) & ~uintptr_t(7), to = address + bytes;
    if (from < to) memset(shadow + (from - start) / 8, why, (to - from) / 8);
}

// The next free place: memory that was freed is not given again soon, so that late uses of it are found.
static uintptr_t place(size_t bytes) {
    for (int round = 0; round < 2; ++round) {
        auto block = allocated.upper_bound(next_place);
        for (; block != allocated.end() && block->first < next_place + bytes + PAGE; ++block)
            next_place = block->first + whole_pages(block->second) + PAGE;
        if (next_place + bytes + PAGE <= start + ROOM) return next_place;
        next_place = start + SHARED_ROOM + PAGE;
    }
    return 0;
}

// The bytes at `address` that may be used, of `bytes`; the shadow tells.
static bool usable(uintptr_t address, size_t bytes) {
    for (uintptr_t at = address & ~uintptr_t(7); at < address + bytes; at += 8) {
        uint8_t value = shadow[(at - start) / 8];
        if (value && (value > 7 || (address + bytes < at + 8 ? address + bytes - at : 8) > value)) return false;
    }
    return true;
}

std::string describe(uintptr_t address) {
    if (!in_device_memory((void*)address))
        return address < PAGE ? "a null pointer"
               : inside(pinned, (void*)address) ? "pinned host memory"
                                                : "memory of the host, or of nobody";
    if (address - start < SHARED_ROOM) return "beyond an array in shared memory";
    if (!is_allocated((void*)address)) return "device memory that is not allocated";
    uint8_t value = shadow[(address - start) / 8];
    return value == FREED ? "device memory that was freed" : "beyond the end of an array";
}

// Pieces that the pool has given, with their whole sizes: 512 bytes are the least that it gives. A copy of all of a piece is a
// program's right, since it owns what was rounded up too: so a block is offloaded whose arrays are not known.
static std::map<uintptr_t, size_t> pieces;
static bool is_a_whole_piece(const void* pointer, size_t bytes) {
    auto piece = pieces.find((uintptr_t)pointer);
    return piece != pieces.end() && piece->second == bytes;
}

// The piece that an address is in: (where it begins, where it ends). What no pool gave is a piece as cudaMalloc gave it.
static std::pair<uintptr_t, uintptr_t> piece_of(uintptr_t address) {
    for (auto* blocks : {&pieces, &allocated}) {
        auto after = blocks->upper_bound(address);
        if (after == blocks->begin()) continue;
        --after;
        if (address < after->first + after->second) return {after->first, after->first + after->second};
    }
    return {0, 0};
}

// The pieces to which a launch was given a pointer: its kernel has no business in others, into which it comes only beyond the end
// of one that leaves no room for forbidden bytes. Anything in the arguments that could be a pointer counts.
static std::vector<std::pair<uintptr_t, uintptr_t>> reachable;
static struct Near {
    uintptr_t from, room;
} near_pieces[64];  // of those, where the kernel has been, by the page of an address: nearly every access is found here
void let_reach(const std::vector<uint64_t>& arguments) {
    memset(near_pieces, 0, sizeof near_pieces);
    reachable.assign(1, {start, start + SHARED_ROOM});
    for (uint64_t value : arguments)
        if (in_device_memory((void*)value)) reachable.push_back(piece_of(value));
}
static Near& near_piece(uintptr_t address) { return near_pieces[address / PAGE % 64]; }
static bool in_reach(uintptr_t address) {
    for (auto [from, to] : reachable)
        if (address - from < to - from) {
            near_piece(address) = {from, to - from};
            return true;
        }
    return false;
}

void check_range(const std::string& who, const void* pointer, size_t bytes) {
    auto address = (uintptr_t)pointer;
    if (bytes == 0) return;
    if (is_allocated(pointer) && piece_of(address).second < address + bytes && usable(address, bytes))
        problem(who + ": " + std::to_string(bytes) + " bytes that are not all one array's: into the next array");
    bool ours = is_allocated(pointer) && is_allocated((char*)pointer + bytes - 1);
    if (!ours || !usable(address, bytes))
        problem(who + ": " + std::to_string(bytes) + " bytes that are not all one array's: " + describe(ours ? address + bytes - 1 : address));
}

static cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, void* stream, bool async) {
    GUARD;
    if (bytes == 0) return cudaSuccess;
    bool to_device = kind == cudaMemcpyDefault ? is_allocated(to) : kind & cudaMemcpyHostToDevice;
    bool from_device = kind == cudaMemcpyDefault ? is_allocated(from) : kind & cudaMemcpyDeviceToHost;
    auto move = [=](const void* source) {
        if (to_device) check_range("a copy writes", to, bytes);
        if (from_device && !is_a_whole_piece(source, bytes)) check_range("a copy reads", source, bytes);
        memmove(to, source, bytes);
    };
    if (!async) {
        wait_for_blocking_streams();
        if (settings.late != IDLE) move(from);
        return cudaSuccess;
    }
    const void* host = !from_device && inside(pinned, from) ? from : !to_device && inside(pinned, to) ? to : nullptr;
    if (!from_device && !host) {  // ordinary memory is read before the call returns
        auto kept = std::make_shared<std::string>((const char*)from, bytes);
        submit(stream, {[=] { move(kept->data()); }});
        return cudaSuccess;
    }
    submit(stream, {[=] { move(from); }, host, bytes});
    if (!to_device && !host) wait_for(stream);  // and it is written before
    return cudaSuccess;
}

static cudaError_t fill(void* to, int value, size_t bytes, void* stream) {
    GUARD;
    if (bytes)
        submit(stream, {[=] {
                   check_range("a memset writes", to, bytes);
                   memset(to, value, bytes);
               }});
    return cudaSuccess;
}

}  // namespace emulated
using namespace emulated;

API cudaError_t cudaMalloc(void** out, size_t bytes) {
    GUARD;
    *out = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (settings.refuse_after == 0 || used[current_device()] + bytes > settings.capacity || !open()) return fail(cudaErrorMemoryAllocation);
    uintptr_t found = place(whole_pages(bytes));
    if (!found || mprotect((void*)found, whole_pages(bytes), PROT_READ | PROT_WRITE)) return fail(cudaErrorMemoryAllocation);
    if (settings.refuse_after > 0) --settings.refuse_after;
    next_place = found + whole_pages(bytes) + PAGE;
    used[current_device()] += bytes;
    allocated[found] = bytes;
    owners[found] = current_device();
    forbid(found, whole_pages(bytes), BEYOND);
    allow(found, bytes);
    *out = (void*)found;
    return cudaSuccess;
}
API cudaError_t cudaFree(void* pointer) {
    GUARD;
    if (!pointer) return cudaSuccess;
    auto block = allocated.find((uintptr_t)pointer);
    if (block == allocated.end()) {
        problem("cudaFree of memory that cudaMalloc did not give");
        return fail(cudaErrorInvalidValue);
    }
    wait_for_all();
    size_t room = whole_pages(block->second);
    forbid(block->first, room, FREED);
    madvise(pointer, room, MADV_DONTNEED);
    mprotect(pointer, room, PROT_NONE);
    used[device_of(pointer)] -= block->second;
    owners.erase(block->first);
    allocated.erase(block);
    return cudaSuccess;
}
// Memory that moves by itself, and memory in the order of a stream, are ordinary memory here.
API cudaError_t cudaMallocManaged(void** out, size_t bytes, unsigned) { return cudaMalloc(out, bytes); }
API cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t) { return cudaMalloc(out, bytes); }
API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
API cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    GUARD;
    *total = settings.capacity;
    size_t mine = used[current_device()];
    *free_bytes = settings.capacity > mine ? settings.capacity - mine : 0;
    return cudaSuccess;
}

// The pool has given `bytes` of a block of `whole` bytes: junk in all of it, and what is beyond is forbidden. Both happen in
// the order of the stream, since work that was given earlier may still use what lay there before. No older piece is left there:
// what a thread without CuPy's hook has freed was not reported.
API void emu_piece_given(void* pointer, size_t bytes, size_t whole, void* stream) {
    GUARD;
    auto given = [=] {
        if (settings.late != IDLE) memset(pointer, settings.junk, whole);
        forbid((uintptr_t)pointer, whole, BEYOND);
        allow((uintptr_t)pointer, bytes);
        pieces.erase(pieces.lower_bound((uintptr_t)pointer), pieces.lower_bound((uintptr_t)pointer + whole));
        pieces[(uintptr_t)pointer] = whole;
    };
    if (is_allocated(pointer)) settings.late == IDLE ? given() : submit(stream, {given});
}
API void emu_piece_freed(void* pointer, size_t whole, void* stream) {
    GUARD;
    auto freed = [=] {
        forbid((uintptr_t)pointer, whole, FREED);
        pieces.erase((uintptr_t)pointer);
    };
    if (is_allocated(pointer)) settings.late == IDLE ? freed() : submit(stream, {freed});
}

API cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
    GUARD;
    size_t room = whole_pages(bytes ? bytes : 1);
    *out = reserve(room, PROT_READ | PROT_WRITE);
    if (!*out) return fail(cudaErrorMemoryAllocation);
    memset(*out, 0xFF, room);
    pinned[(uintptr_t)*out] = bytes ? bytes : 1;
    return cudaSuccess;
}
API cudaError_t cudaFreeHost(void* pointer) {
    GUARD;
    auto block = pinned.find((uintptr_t)pointer);
    if (block == pinned.end()) return fail(cudaErrorInvalidValue);
    if (pending_on(pointer, block->second)) problem("pinned memory is freed while a copy of it is pending");
    wait_for_all();
    munmap(pointer, whole_pages(block->second));
    pinned.erase(block);
    return cudaSuccess;
}

API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return copy(to, from, bytes, kind, nullptr, false);
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(to, from, bytes, kind, stream, true);
}
API cudaError_t cudaMemset(void* to, int value, size_t bytes) { return fill(to, value, bytes, nullptr); }
API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) { return fill(to, value, bytes, stream); }

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
    GUARD;
    bool device = is_allocated(pointer), host = inside(pinned, pointer);
    memset(found, 0, sizeof *found);
    found->type = device ? cudaMemoryTypeDevice : host ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    found->device = device ? device_of(pointer) : host ? 0 : -2;
    found->devicePointer = device || host ? (void*)pointer : nullptr;
    found->hostPointer = host ? (void*)pointer : nullptr;
    return cudaSuccess;
}

// What g++ calls before each load and store of a kernel (-fsanitize=kernel-address; the names are the compiler's). A bad access
// ends the launch, as it would on a GPU, and is a problem of the test.
static void refuse(uintptr_t address, size_t bytes, bool write, const std::string& what) {
    problem(who_runs() + (write ? " writes " : " reads ") + std::to_string(bytes) + " bytes: " + what);
    stop_launch();
}
static bool is_aligned(uintptr_t address, size_t bytes) { return !(address & (bytes - 1)); }
static void look_closer(uintptr_t address, size_t bytes, bool write, bool whole) {
    if (address - start < ROOM) {
        if (whole && !is_aligned(address, bytes)) refuse(address, bytes, write, "their address is no multiple of that");
        if (!usable(address, bytes)) refuse(address, bytes, write, describe(address));
        if (a_kernel_runs && !in_reach(address)) refuse(address, bytes, write, "an array that the kernel was not given");
    } else if (a_kernel_runs && !is_an_argument(address) && !in_a_kernels_image(address)) {
        refuse(address, bytes, write, describe(address));
    }
}
// `whole`: one number, which a GPU reads and writes at multiples of its size only; x86 does so anywhere. What g++ splits, as it
// may a float4, counts as its parts.
static inline __attribute__((always_inline)) void check(uintptr_t address, size_t bytes, bool write, bool whole) {
    if (address - (uintptr_t)&own < sizeof own) return;
    const Near& piece = near_piece(address);
    bool in_a_word = whole ? bytes <= 8 && is_aligned(address, bytes) : (address & 7) + bytes <= 8;
    if (address - piece.from < piece.room && in_a_word && !shadow[(address - start) / 8]) return;
    look_closer(address, bytes, write, whole);
}
#define CHECKS(n)                                                                  \
    API void __asan_load##n##_noabort(uintptr_t at) { check(at, n, false, true); } \
    API void __asan_store##n##_noabort(uintptr_t at) { check(at, n, true, true); }
CHECKS(1) CHECKS(2) CHECKS(4) CHECKS(8) CHECKS(16)
API void __asan_loadN_noabort(uintptr_t at, size_t bytes) {
    if (bytes) check(at, bytes, false, false);
}
API void __asan_storeN_noabort(uintptr_t at, size_t bytes) {
    if (bytes) check(at, bytes, true, false);
}
API void __asan_handle_no_return() {}

// And where x86 and a GPU compute different integers (-fsanitize=shift-exponent,float-cast-overflow): x86 shifts by the last bits of
// the count, and makes of a float out of range the least integer; a GPU shifts everything out, and makes the nearest integer.
static void differs(const char* what) {
    if (!a_kernel_runs) return;
    problem(who_runs() + what);
    stop_launch();
}
API void __ubsan_handle_shift_out_of_bounds(void*, void*, void*) { differs(" shifts by as many bits as the number has, or more"); }
API void __ubsan_handle_float_cast_overflow(void*, void*) { differs(" makes an integer of a float that is out of its range"); }
