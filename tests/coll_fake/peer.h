/* The fake GPUs' part of the wire `peer`: all ranks are threads of one process, so they reach memory directly. */
#ifndef STRAIT_TESTS_COLL_FAKE_PEER_H
#define STRAIT_TESTS_COLL_FAKE_PEER_H

#include "collective/engine/peer_gpu.h"

/* The kernels of collective/cuda/peer.cu, run by one thread, as work on streams. Arguments are copied. */
void kernel_claim(const struct peer_claim *claim, coll_stream stream);
void kernel_post(const struct peer_post *post, coll_stream stream);
void kernel_turn(const struct peer_receive_step *turn, coll_stream stream);

/* Whether kernels of that device have given up. After that, others may read where its streams write, or write where
 * they read: peer_gpu.h says why that does no harm. fake_move_racy hides this from ThreadSanitizer. */
bool fake_has_given_up(int device);
void fake_move(void *dst, const void *src, size_t size);
void fake_move_racy(void *dst, const void *src, size_t size);

#endif
