/* Arrays and mipmapped arrays: what they take follows from their shape. */
#define _GNU_SOURCE
#include "ledger.h"

/* A channel of a format that is not known here is taken for the largest there is. */
static uint64_t channel_bytes(int format)
{
    switch (format) {
    case 0x01: /* 8 bits, unsigned and signed */
    case 0x08:
        return 1;
    case 0x02: /* 16 bits, and half */
    case 0x09:
    case 0x10:
        return 2;
    default:
        return 4;
    }
}

/* A length of 0 means that the array has no such dimension. One without memory of its own takes none. */
static uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    if ((shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) {
        return 0;
    }
    uint64_t bytes = channel_bytes(shape->Format) * shape->NumChannels;
    uint64_t lengths[] = {shape->Width, shape->Height == 0 ? 1 : shape->Height, shape->Depth == 0 ? 1 : shape->Depth};
    for (int d = 0; d < 3; d++) {
        if (__builtin_mul_overflow(bytes, lengths[d], &bytes)) {
            return SIZE_MAX / 2;
        }
    }
    return bytes;
}

static size_t half(size_t length)
{
    return length > 1 ? length / 2 : length;
}

static uint64_t bytes_of_levels(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    CUDA_ARRAY3D_DESCRIPTOR level = *shape;
    uint64_t bytes = 0;
    for (unsigned int l = 0; l < levels && l < 64; l++) {
        if (__builtin_add_overflow(bytes, bytes_of(&level), &bytes)) {
            return SIZE_MAX / 2;
        }
        level.Width = half(level.Width);
        level.Height = half(level.Height);
        level.Depth = (shape->Flags & CUDA_ARRAY3D_LAYERED) != 0 ? level.Depth : half(level.Depth);
    }
    return bytes;
}

static bool claim_shape(struct claim_of_memory *claim, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    return claim_begin_here(claim, bytes_of_levels(shape, levels));
}

#define CREATE(name, shape_type, ...)                                                                                 \
    HOOKED CUresult name(CUarray *array, const shape_type *shape)                                                     \
    {                                                                                                                 \
        struct claim_of_memory claim;                                                                                 \
        static const shape_type NOTHING;                                                                              \
        const shape_type *given = shape == NULL ? &NOTHING : shape;                                                   \
        CUDA_ARRAY3D_DESCRIPTOR full = {__VA_ARGS__};                                                                 \
        if (!claim_shape(&claim, &full, 1)) {                                                                         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                          \
        }                                                                                                             \
        CUresult result = REAL(name)(array, shape);                                                                   \
        return claim_end(&claim, result, KIND_ARRAY, result == CUDA_SUCCESS ? (uintptr_t)*array : 0);                 \
    }
CREATE(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, given->Width, given->Height, 0, given->Format, given->NumChannels, 0)
CREATE(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, given->Width, given->Height, 0, given->Format, given->NumChannels, 0)
CREATE(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, given->Width, given->Height, given->Depth, given->Format,
       given->NumChannels, given->Flags)
CREATE(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, given->Width, given->Height, given->Depth, given->Format,
       given->NumChannels, given->Flags)

HOOKED CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                       unsigned int levels)
{
    struct claim_of_memory claim;
    static const CUDA_ARRAY3D_DESCRIPTOR NOTHING;
    if (!claim_shape(&claim, shape == NULL ? &NOTHING : shape, levels)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMipmappedArrayCreate)(array, shape, levels);
    return claim_end(&claim, result, KIND_MIPMAPPED, result == CUDA_SUCCESS ? (uintptr_t)*array : 0);
}
