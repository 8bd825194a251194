/*
 * Modules, libraries and kernels. An image is looked at only for the names in it; what a kernel would compute is not
 * known here, how long it takes is. A kernel whose name has `vgpu_` and a time in it, such as `spin_vgpu_250us`, takes
 * that long; for all others a launch takes the model's `kernel_ns` for every wave of threads that the device can hold.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xBA55ED50u
#define FATBIN_WRAPPER_MAGIC 0x466243B1u

struct CUfunc_st {
    struct CUmod_st *module;
    char *name;
    uint64_t length_ns; /* 0: by the number of threads */
    struct CUfunc_st *next;
};

/* A library is a module, and a kernel a function, under another name. */
struct CUmod_st {
    char *image;
    size_t size;
    bool opaque; /* packed: the names in it cannot be read */
    struct CUfunc_st *functions;
};

struct fatbin {
    uint32_t magic;
    uint16_t version;
    uint16_t header_bytes;
    uint64_t contents_bytes;
};

struct fatbin_wrapper {
    uint32_t magic;
    uint32_t version;
    const void *contents;
};

static size_t elf_bytes(const Elf64_Ehdr *header)
{
    size_t sections = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
    size_t segments = header->e_phoff + (size_t)header->e_phnum * header->e_phentsize;
    return sections > segments ? sections : segments;
}

/* How long an image is, told by itself; 0 for what is none. */
static size_t image_bytes(const void **image, bool *opaque)
{
    uint32_t magic;
    memcpy(&magic, *image, sizeof magic);
    *opaque = false;
    if (magic == FATBIN_WRAPPER_MAGIC) {
        *image = ((const struct fatbin_wrapper *)*image)->contents;
        memcpy(&magic, *image, sizeof magic);
    }
    if (magic == FATBIN_MAGIC) {
        const struct fatbin *header = *image;
        *opaque = true;
        return header->header_bytes + (size_t)header->contents_bytes;
    }
    if (memcmp(*image, ELFMAG, SELFMAG) == 0) {
        return elf_bytes(*image);
    }
    const char *text = *image;
    return strstr(text, ".version") != NULL && strstr(text, ".target") != NULL ? strlen(text) + 1 : 0;
}

static CUresult load(CUmodule *module, const void *image)
{
    CUcontext context;
    CUresult result = driver_context(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (module == NULL || image == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool opaque;
    size_t size = image_bytes(&image, &opaque);
    if (size == 0) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    struct CUmod_st *made = calloc(1, sizeof *made);
    char *kept = malloc(size);
    if (made == NULL || kept == NULL) {
        free(made);
        free(kept);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(kept, image, size);
    *made = (struct CUmod_st){.image = kept, .size = size, .opaque = opaque};
    *module = made;
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return load(module, image);
}
ALIAS(cuModuleLoadFatBinary, cuModuleLoadData);

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
    (void)count;
    (void)options;
    (void)values;
    return load(module, image);
}

API CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    FILE *file = path == NULL ? NULL : fopen(path, "rbe");
    if (file == NULL) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    /* A text is to end with a zero, and a header is to be there in full. */
    char *image = size < 0 ? NULL : calloc(1, (size_t)size + sizeof(Elf64_Ehdr));
    bool read = image != NULL && fread(image, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    CUresult result = read ? load(module, image) : CUDA_ERROR_INVALID_IMAGE;
    free(image);
    return result;
}

API CUresult cuModuleUnload(CUmodule module)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS || module == NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    while (module->functions != NULL) {
        struct CUfunc_st *function = module->functions;
        module->functions = function->next;
        free(function->name);
        free(function);
    }
    free(module->image);
    free(module);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(int *mode)
{
    *mode = 1; /* eager */
    return driver_ready();
}

/* `…vgpu_250us…` is 250,000; 0 for a name without a time. */
static uint64_t length_in_name(const char *name)
{
    for (const char *at = strstr(name, "vgpu_"); at != NULL; at = strstr(at, "vgpu_")) {
        at += strlen("vgpu_");
        char *unit;
        uint64_t number = strtoull(at, &unit, 10);
        if (unit == at || *at == '-') {
            continue;
        }
        uint64_t unit_ns = strncmp(unit, "ns", 2) == 0   ? 1
                           : strncmp(unit, "us", 2) == 0 ? 1000
                           : strncmp(unit, "ms", 2) == 0 ? VGPU_MILLISECOND_NS
                                                         : 0;
        if (number > 0 && unit_ns > 0 && number <= 3600 * VGPU_SECOND_NS / unit_ns) {
            return number * unit_ns;
        }
    }
    return 0;
}

uint64_t kernel_length_ns(CUfunction function, uint32_t device, uint64_t threads)
{
    if (function->length_ns != 0) {
        return function->length_ns;
    }
    const struct vgpu_device *on = &driver.file->devices[device];
    uint64_t resident = (uint64_t)on->multiprocessors * on->threads_per_multiprocessor;
    uint64_t waves = (threads + resident - 1) / resident;
    return on->kernel_ns * waves;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUresult result = driver_ready();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (function == NULL || module == NULL || name == NULL || *name == '\0') {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!module->opaque && memmem(module->image, module->size, name, strlen(name)) == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    pthread_mutex_lock(&driver.lock);
    struct CUfunc_st *found = module->functions;
    while (found != NULL && strcmp(found->name, name) != 0) {
        found = found->next;
    }
    if (found == NULL) {
        found = calloc(1, sizeof *found);
        char *kept = strdup(name);
        if (found == NULL || kept == NULL) {
            free(found);
            free(kept);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *found = (struct CUfunc_st){module, kept, length_in_name(name), module->functions};
            module->functions = found;
        }
    }
    pthread_mutex_unlock(&driver.lock);
    if (result == CUDA_SUCCESS) {
        *function = found;
    }
    return result;
}

/* Variables of a module have no memory here. */
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
    (void)address;
    (void)size;
    (void)module;
    (void)name;
    CUresult result = driver_ready();
    return result == CUDA_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values,
                               unsigned int jit_count, int *options, void **option_values, unsigned int option_count)
{
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)option_values;
    (void)option_count;
    return load((CUmodule *)library, code);
}

API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values,
                                   unsigned int jit_count, int *options, void **option_values,
                                   unsigned int option_count)
{
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)option_values;
    (void)option_count;
    return cuModuleLoad((CUmodule *)library, path);
}

API CUresult cuLibraryUnload(CUlibrary library)
{
    return cuModuleUnload((CUmodule)library);
}

API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    *module = (CUmodule)library;
    return driver_ready();
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction((CUfunction *)kernel, (CUmodule)library, name);
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    return cuModuleGetGlobal_v2(address, size, (CUmodule)library, name);
}
ALIAS(cuLibraryGetManaged, cuLibraryGetGlobal);

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    *function = (CUfunction)kernel;
    return driver_ready();
}

API CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    *module = function->module;
    return driver_ready();
}

API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    return cuFuncGetModule((CUmodule *)library, (CUfunction)kernel);
}

API CUresult cuFuncGetName(const char **name, CUfunction function)
{
    *name = function->name;
    return driver_ready();
}

API CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    return cuFuncGetName(name, (CUfunction)kernel);
}
