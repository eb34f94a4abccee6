// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The names that C programs know of operations on a context: oxshmem_ctx_<type>_<operation>,
// oxshmem_ctx_put<bits>, oxshmem_ctx_putmem, and oxshmemx_ctx_..._warp and _block for the wider
// scopes. Each forwards to a template of context.h. `oxshmem_ctx_t` is what the host's
// oxshmem_ctx_create writes.
#pragma once

#include "oxshmem.h"
#include "types.h"

namespace oxshmem::detail {

// A context as the host hands it to C programs.
OXSHMEM_DEVICE Context as_context(const oxshmem_ctx_t &handle) {
    static_assert(sizeof(Context) == sizeof(oxshmem_ctx_t));
    Context context;
    memcpy(&context, &handle, sizeof(context));
    return context;
}

} // namespace oxshmem::detail

#define OXSHMEM_FOR_EACH_NAMED_SCOPE(X, ...)                                                                                   \
    X(oxshmem_ctx_, , oxshmem::thread, __VA_ARGS__)                                                                            \
    X(oxshmemx_ctx_, _warp, oxshmem::warp, __VA_ARGS__)                                                                        \
    X(oxshmemx_ctx_, _block, oxshmem::block, __VA_ARGS__)
#define OXSHMEM_FOR_EACH_NAMED_NARROW_SCOPE(X, ...) OXSHMEM_FOR_EACH_NAMED_SCOPE(X, __VA_ARGS__)
#define OXSHMEM_NAME(name) oxshmem_ctx_##name
#define OXSHMEM_CONTEXT_PARAMETER oxshmem_ctx_t ctx,
#define OXSHMEM_CONTEXT_ARGUMENT oxshmem::detail::as_context(ctx),
#include "detail/typed_names.h"

OXSHMEM_DEVICE void oxshmem_ctx_quiet(oxshmem_ctx_t ctx) {
    oxshmem::quiet(oxshmem::detail::as_context(ctx));
}
OXSHMEM_DEVICE void oxshmemx_ctx_quiet_warp(oxshmem_ctx_t ctx) {
    oxshmem::quiet(oxshmem::detail::as_context(ctx), oxshmem::warp);
}
OXSHMEM_DEVICE void oxshmemx_ctx_quiet_block(oxshmem_ctx_t ctx) {
    oxshmem::quiet(oxshmem::detail::as_context(ctx), oxshmem::block);
}
OXSHMEM_DEVICE void oxshmem_ctx_fence(oxshmem_ctx_t ctx) {
    oxshmem::fence(oxshmem::detail::as_context(ctx));
}
OXSHMEM_DEVICE void oxshmemx_ctx_signal_op(oxshmem_ctx_t ctx, uint64_t *signal, uint64_t value,
                                           oxshmem::detail::Named<oxshmem::SignalOp> op, int pe) {
    oxshmem::signal_op(oxshmem::detail::as_context(ctx), signal, value, op, pe);
}
// Returns the context with puts that ring at the next flush; see oxshmem::batched.
OXSHMEM_DEVICE oxshmem_ctx_t oxshmemx_ctx_batched(oxshmem_ctx_t ctx) {
    const oxshmem::Context context = oxshmem::batched(oxshmem::detail::as_context(ctx));
    memcpy(&ctx, &context, sizeof(ctx));
    return ctx;
}
OXSHMEM_DEVICE void oxshmemx_ctx_flush(oxshmem_ctx_t ctx) {
    oxshmem::flush(oxshmem::detail::as_context(ctx));
}
