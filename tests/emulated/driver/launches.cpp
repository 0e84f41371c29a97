// Modules and launches. The threads of a block are fibers on one host thread where they wait for one another, and calls in a
// loop where they do not.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "emulated.h"

namespace emulated {

struct Function {
    EmuKernel* kernel;
    std::string name;
};
struct Module {
    void* handle;
    std::map<std::string, Function> functions;
};
struct Launch {
    Function* function;
    unsigned grid[3], block[3];
    size_t shared;
    bool backward;
    std::vector<uint64_t> arguments;  // copied when the launch is given, as the driver does
    std::vector<size_t> offsets;
};

enum State { READY, AT_BARRIER, AT_WARP, DONE };
struct Fiber {
    void* stack_pointer;
    State state;
    int op, site;
    unsigned mask;
    unsigned long long value;
};

__attribute__((visibility("default"))) Own own;
static EmuPlace& emu_place = own.place;
static Fiber fibers[THREADS];
static void* driver_stack_pointer;
static int current;
static Launch* running;
static void** running_arguments;
static bool stopped;
static unsigned took_part[THREADS / 32];
struct Count {
    long times, threads;  // of the largest block
};
static std::map<std::string, Count> launched;
static std::map<uintptr_t, uintptr_t> images;  // where kernels' libraries lie: constants, tables of the compiler
bool a_kernel_runs = false;

}  // namespace emulated
using namespace emulated;

// Save the registers that a call must keep, change stacks, restore. The processor would expect a `ret` to go where the last
// call came from, which it never does here.
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  popq %rcx
  jmpq *%rcx
)");
extern "C" void emu_switch(void** save, void* load);

namespace emulated {

std::string who_runs() {
    const unsigned *t = emu_place.thread, *b = emu_place.block;
    auto triple = [](const unsigned* v) {
        return "(" + std::to_string(v[0]) + ", " + std::to_string(v[1]) + ", " + std::to_string(v[2]) + ")";
    };
    return "kernel " + running->function->name + ", thread " + triple(t) + " of block " + triple(b) + ",";
}
bool is_an_argument(uintptr_t address) {
    auto arguments = (uintptr_t)running->arguments.data(), pointers = (uintptr_t)running_arguments;
    return address - arguments < running->arguments.size() * 8 || address - pointers < running->offsets.size() * 8;
}
bool in_a_kernels_image(uintptr_t address) {
    static uintptr_t from, to;  // the last one
    if (address - from < to - from) return true;
    auto after = images.upper_bound(address);
    if (after == images.begin() || address >= (--after)->second) return false;
    from = after->first, to = after->second;
    return true;
}
static void back_to_driver() { emu_switch(&fibers[current].stack_pointer, driver_stack_pointer); }
void stop_launch() {
    stopped = true;
    fibers[current].state = DONE;
    back_to_driver();
    __builtin_unreachable();
}

static void set_thread(unsigned thread) {
    unsigned* size = emu_place.block_size;
    if (size[1] * size[2] == 1) {
        emu_place.thread[0] = thread;
        return;
    }
    emu_place.thread[0] = thread % size[0];
    emu_place.thread[1] = thread / size[0] % size[1];
    emu_place.thread[2] = thread / size[0] / size[1];
}

static void one_thread() {
    running->function->kernel->call(running_arguments);
    fibers[current].state = DONE;
    back_to_driver();
}
static void all_threads() {  // of a block whose threads do not wait for one another
    unsigned* size = emu_place.block_size;
    unsigned count = size[0] * size[1] * size[2];
    for (unsigned i = 0; i < count; ++i) {
        set_thread(running->backward ? count - 1 - i : i);
        running->function->kernel->call(running_arguments);
    }
    fibers[current].state = DONE;
    back_to_driver();
}
static void start_fiber(int thread, void (*body)()) {
    // Not all at the same place of a page, or their first lines would take one another's place in the processor's cache.
    void** top = (void**)(own.stacks + (thread + 1) * STACK - thread % 32 * 128) - 2;
    *--top = nullptr;  // where a call would leave its return address: the stack is aligned as functions expect it
    *--top = (void*)body;
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    fibers[thread].state = READY;
    fibers[thread].stack_pointer = top;
}
static void go_on(int thread) {
    current = thread;
    set_thread(thread);
    emu_switch(&driver_stack_pointer, fibers[thread].stack_pointer);
}

static void complain(const char* what) { problem("kernel " + running->function->name + ": " + what); }

// All lanes of a warp stand still: let those go on whose warp function is complete. False: nobody waits for a warp function.
static bool complete_warp_function(int first, int end) {
    unsigned waiting = 0, gone = 0, at_barrier = 0;
    Fiber* lead = nullptr;
    for (int t = first; t < end; ++t) {
        unsigned bit = 1u << (t - first);
        if (fibers[t].state == AT_WARP) waiting |= bit, lead = lead ? lead : &fibers[t];
        if (fibers[t].state == DONE) gone |= bit;
        if (fibers[t].state == AT_BARRIER) at_barrier |= bit;
    }
    if (!lead) return false;
    unsigned exist = end - first == 32 ? ~0u : (1u << (end - first)) - 1, named = lead->mask & exist;
    if (named & gone) complain("a warp function names lanes that have left");
    if (named & at_barrier) complain("some lanes of a warp wait at __syncthreads and others at a warp function");
    took_part[first / 32] = (named & waiting) | (waiting & -waiting);  // the first of them goes on in any case
    int site = lead->site, op = lead->op;
    unsigned mask = lead->mask;
    for (int t = first; t < end; ++t) {
        if (!(took_part[first / 32] >> (t - first) & 1)) continue;
        if (fibers[t].op != op || fibers[t].mask != mask || fibers[t].site != site)
            complain("lanes of a warp meet at different warp functions");
        own.said[first / 32][t - first] = fibers[t].value;
        fibers[t].state = READY;
    }
    return true;
}

static void run_warp(int first, int end) {
    do {
        for (int i = first; i < end && !stopped; ++i) {
            int thread = running->backward ? first + end - 1 - i : i;
            if (fibers[thread].state == READY) go_on(thread);
        }
    } while (!stopped && complete_warp_function(first, end));
}

// All threads stand still: either all wait at one __syncthreads, or all are done; anything else is a mistake of the kernel.
static bool complete_barrier(int count) {
    int waiting = 0, site = 0;
    bool one_site = true;
    for (int t = 0; t < count; ++t) {
        if (fibers[t].state != AT_BARRIER) continue;
        one_site &= !waiting || site == fibers[t].site;
        site = fibers[t].site;
        ++waiting;
        fibers[t].state = READY;
    }
    if (waiting && waiting < count) complain("__syncthreads that some threads of the block do not reach");
    if (!one_site) complain("threads of a block meet at different __syncthreads");
    return waiting > 0;
}

static void run_block_of_fibers(int count) {
    for (int t = 0; t < count; ++t) start_fiber(t, one_thread);
    int warps = (count + 31) / 32;
    do {
        for (int i = 0; i < warps && !stopped; ++i) {
            int first = (running->backward ? warps - 1 - i : i) * 32;
            run_warp(first, first + 32 < count ? first + 32 : count);
        }
    } while (!stopped && complete_barrier(count));
}

// Shared memory: each array of a block lies between forbidden bytes, and is full of junk when the block starts.
static const size_t BETWEEN = 64, SHARED_MOST = 49152;  // of a block, which no kernel of ours asks to exceed
static std::map<const void*, uintptr_t> shared_arrays;  // by the address of a variable that stands for the declaration
static uintptr_t shared_end;
static size_t shared_used;

static uintptr_t new_shared_array(size_t bytes) {
    uintptr_t array = (shared_end + BETWEEN + 15) & ~uintptr_t(15);
    shared_used += bytes;
    if (shared_used > SHARED_MOST) {
        problem(who_runs() + " needs more shared memory than there is");
        stop_launch();
    }
    memset((void*)array, 0xFF, bytes);
    forbid(array, bytes + BETWEEN, BEYOND);
    allow(array, bytes);
    shared_end = array + bytes;
    return array;
}
static void empty_shared_memory(size_t dynamic) {
    uintptr_t base = shared_memory();
    if (shared_end) forbid(base, shared_end + BETWEEN - base, NEVER_GIVEN);
    shared_arrays.clear();
    shared_end = base;
    shared_used = 0;
    shared_arrays[nullptr] = new_shared_array(dynamic);
}

// CuPy compiles for GPUs with -ftz=true: subnormal float32 numbers, read or computed, are 0. The processor's bits for it hold for
// float64 numbers too, so a kernel that is given such keeps all. NVIDIA's assembler joins comparisons, and then lets one of them
// see subnormal numbers that are read: where all comparisons are to see them, only those that are computed are 0.
static const unsigned SUBNORMALS_ARE_0 = 0x8040, COMPUTED_SUBNORMALS_ARE_0 = 0x8000;

static void run(Launch& launch) {
    static int large_pages = madvise(own.stacks, sizeof own.stacks, MADV_HUGEPAGE);  // each thread's stack is elsewhere
    (void)large_pages;
    std::vector<void*> pointers;
    for (size_t offset : launch.offsets) pointers.push_back((char*)launch.arguments.data() + offset);
    running = &launch;
    running_arguments = pointers.data();
    let_reach(launch.arguments);
    stopped = false;
    a_kernel_runs = true;
    unsigned rounding = _mm_getcsr();
    if (!launch.function->kernel->of_doubles) _mm_setcsr(rounding | (settings.compared ? COMPUTED_SUBNORMALS_ARE_0 : SUBNORMALS_ARE_0));
    const unsigned *grid = launch.grid, *block = launch.block;
    memcpy(emu_place.grid_size, grid, sizeof launch.grid);
    memcpy(emu_place.block_size, block, sizeof launch.block);
    memset(emu_place.thread, 0, sizeof emu_place.thread);
    unsigned long long blocks = (unsigned long long)grid[0] * grid[1] * grid[2];
    for (unsigned long long i = 0; i < blocks && !stopped; ++i) {
        unsigned long long b = launch.backward ? blocks - 1 - i : i;
        emu_place.block[0] = b % grid[0];
        emu_place.block[1] = b / grid[0] % grid[1];
        emu_place.block[2] = b / grid[0] / grid[1];
        empty_shared_memory(launch.shared);
        if (launch.function->kernel->needs_fibers) {
            run_block_of_fibers(block[0] * block[1] * block[2]);
        } else {
            start_fiber(0, all_threads);
            go_on(0);
            if (fibers[0].state != DONE) complain("its threads wait for one another, and the emulator did not know it"), stopped = true;
        }
    }
    _mm_setcsr(rounding);
    a_kernel_runs = false;
}

static bool launch_is_backward() {
    if (settings.order != MIXED) return settings.order == BACKWARD;
    static unsigned long long count = 0;
    return __builtin_popcountll(++count) & 1;  // a sequence without a period: no loop of launches falls in step with it
}

static int note_image(dl_phdr_info* info, size_t, void* handle) {
    auto* map = (link_map*)handle;
    if (info->dlpi_addr != map->l_addr) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i)
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            images[from] = from + info->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

}  // namespace emulated

API void emu_sync_block(int site) {
    fibers[current].state = AT_BARRIER;
    fibers[current].site = site;
    back_to_driver();
}
API unsigned long long* emu_sync_warp(int op, unsigned mask, unsigned long long value, int site, unsigned* active) {
    Fiber& me = fibers[current];
    int warp = current / 32;
    if (!(mask >> (current & 31) & 1)) complain("a lane calls a warp function that does not name it");
    me.state = AT_WARP;
    me.op = op;
    me.mask = mask;
    me.value = value;
    me.site = site;
    back_to_driver();
    *active = took_part[warp];
    return own.said[warp];
}
API void* emu_shared_array(const void* declaration, size_t bytes) {
    uintptr_t& array = shared_arrays[declaration];
    if (!array) array = new_shared_array(bytes);
    return (void*)array;
}
API void* emu_dynamic_shared() { return (void*)shared_arrays[nullptr]; }

static EmuKernel nothing = {nullptr, 0, nullptr, false, false, false};

API CUresult cuModuleLoadData(CUmodule* out, const void* image) {  // "EMU:" and the path of a library
    GUARD;
    if (!strcmp((const char*)image, "DRY:")) {  // its kernels do nothing
        *out = (CUmodule) new Module{nullptr, {}};
        return CUDA_SUCCESS;
    }
    if (strncmp((const char*)image, "EMU:", 4)) return CUDA_ERROR_INVALID_IMAGE;
    void* handle = dlopen((const char*)image + 4, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        problem(std::string("a compiled kernel cannot be loaded: ") + dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    dl_iterate_phdr(note_image, handle);
    *out = (CUmodule) new Module{handle, {}};
    return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }  // pending launches may still need it
API CUresult cuModuleGetFunction(CUfunction* out, CUmodule module_, const char* name) {
    GUARD;
    auto* module = (Module*)module_;
    auto* kernel = &nothing;
    if (module->handle) kernel = (EmuKernel*)dlsym(module->handle, (std::string("emu_kernel_") + name).c_str());
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    auto found = module->functions.try_emplace(name, Function{kernel, name}).first;
    *out = (CUfunction)&found->second;
    return CUDA_SUCCESS;
}

// A launch gives pointers to arguments and no sizes: as many bytes are read as the kernel's own types have.
API bool emu_fits(CUfunction function_, const int* sizes, int count) {
    GUARD;
    auto* function = (Function*)function_;
    const EmuKernel& kernel = *function->kernel;
    bool fits = !kernel.call || (count == kernel.count && std::equal(sizes, sizes + count, kernel.sizes));
    if (!fits) problem("launch of kernel " + function->name + ": the arguments have other sizes than its parameters");
    return fits;
}

API CUresult cuLaunchKernel(CUfunction function_, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream stream, void** arguments, void**) {
    GUARD;
    auto* function = (Function*)function_;
    bool empty = !gx || !gy || !gz || !bx || !by || !bz;
    if (empty || (size_t)bx * by * bz > THREADS || bz > 64 || gx > 2147483647u || gy > 65535 || gz > 65535 || shared > SHARED_MOST) {
        problem("launch of kernel " + function->name + " refused: grid, block or shared memory is out of range");
        return CUDA_ERROR_INVALID_VALUE;
    }
    const EmuKernel& kernel = *function->kernel;
    if (settings.late != IDLE) {
        Count& count = launched[function->name];
        ++count.times;
        count.threads = std::max(count.threads, (long)bx * by * bz);
    }
    if (!kernel.call) return CUDA_SUCCESS;
    auto launch = std::make_shared<Launch>(Launch{function, {gx, gy, gz}, {bx, by, bz}, shared, launch_is_backward(), {}, {}});
    for (int i = 0; i < kernel.count; ++i) {
        size_t offset = launch->arguments.size() * 8, words = (kernel.sizes[i] + 15) / 16 * 2;
        launch->offsets.push_back(offset);
        launch->arguments.resize(launch->arguments.size() + words);
        memcpy((char*)launch->arguments.data() + offset, arguments[i], kernel.sizes[i]);
    }
    std::string who = "launch of kernel " + function->name;
    for (size_t offset : launch->offsets) want_here(who, (const void*)launch->arguments[offset / 8]);  // an array begins with it
    if (device_of_stream(stream) != current_device()) problem(who + ": its stream is another device's");
    ++seen.launches;
    seen.with_fibers += kernel.needs_fibers;
    seen.order_matters += kernel.needs_order;
    submit(stream, {[launch] { run(*launch); }});
    return CUDA_SUCCESS;
}
API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                       unsigned bz, unsigned shared, CUstream stream, void** arguments) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, nullptr);
}
// Names of launched kernels, a line each with how often, and the threads of the largest block. Returns the bytes that the text needs.
API size_t emu_launched(char* out, size_t room) {
    GUARD;
    std::string text;
    for (auto& [name, count] : launched)
        text += name + " " + std::to_string(count.times) + " " + std::to_string(count.threads) + "\n";
    if (text.size() < room) memcpy(out, text.c_str(), text.size() + 1);
    return text.size() + 1;
}

API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction, int, size_t) {
    *count = 2;
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t, int) {
    *grid = 8;
    *block = 256;
    return CUDA_SUCCESS;
}
