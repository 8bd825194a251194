/* The ways to a function that go round a direct link: dlsym and cuGetProcAddress. Both give ours where there is one. */
#define _GNU_SOURCE
#include "real.h"

#include <string.h>

EARLY static void *address_of(function given)
{
    void *address;
    memcpy(&address, &given, sizeof address);
    return address;
}

static CUresult exchange(CUresult result, const char *base, void **found, int version, uint64_t flags,
                         bool second_version)
{
    if (result != CUDA_SUCCESS || base == NULL || found == NULL || *found == NULL) {
        return result;
    }
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    int known = version < NEWEST_CUDA ? version : NEWEST_CUDA;
    function hook = hook_by_version(base, known, per_thread);
    if (hook == NULL) {
        return result;
    }
    if (version > NEWEST_CUDA) {
        /* Only if a newer driver means the same function by it: another one may take other arguments. */
        void *same = NULL;
        CUresult asked = second_version ? REAL(cuGetProcAddress_v2)(base, &same, NEWEST_CUDA, flags, NULL)
                                        : REAL(cuGetProcAddress)(base, &same, NEWEST_CUDA, flags);
        if (asked != CUDA_SUCCESS || same != *found) {
            return result;
        }
    }
    *found = address_of(hook);
    return result;
}

HOOKED CUresult cuGetProcAddress(const char *base, void **found, int version, uint64_t flags)
{
    return exchange(REAL(cuGetProcAddress)(base, found, version, flags), base, found, version, flags, false);
}

HOOKED CUresult cuGetProcAddress_v2(const char *base, void **found, int version, uint64_t flags, int *status)
{
    return exchange(REAL(cuGetProcAddress_v2)(base, found, version, flags, status), base, found, version, flags, true);
}

/* Where dlsym goes on when the name is none of ours. */
dlsym_function share_next_dlsym;
void *share_hook_for(void *handle, const char *name);

/* Our function, if the caller would find the driver's; NULL to let the loader answer. */
EARLY __attribute__((used)) void *share_hook_for(void *handle, const char *name)
{
    if (share_next_dlsym == NULL) {
        share_next_dlsym = real_dlsym();
    }
    bool ours = name != NULL && ((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v'));
    function hook = ours ? hook_by_name(name) : NULL;
    return hook != NULL && share_next_dlsym(handle, name) != NULL ? address_of(hook) : NULL;
}

/*
 * The loader looks at who calls dlsym, by the return address: RTLD_NEXT means what comes after the caller. So we have
 * to jump there with the stack as it was, and may not call it. Otherwise a library that wraps malloc finds itself.
 */
HOOKED void *dlsym(void *restrict handle, const char *restrict name);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    pushq %rsi\n"
        "    subq $8, %rsp\n"
        "    call share_hook_for\n"
        "    addq $8, %rsp\n"
        "    popq %rsi\n"
        "    popq %rdi\n"
        "    testq %rax, %rax\n"
        "    jne 1f\n"
        "    jmp *share_next_dlsym(%rip)\n"
        "1:  ret\n"
        ".size dlsym, . - dlsym\n");
#else
/* Compiled with -O2 this is a jump too. */
HOOKED void *dlsym(void *restrict handle, const char *restrict name)
{
    void *hook = share_hook_for(handle, name);
    return hook != NULL ? hook : share_next_dlsym(handle, name);
}
#endif
