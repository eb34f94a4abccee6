// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Prints segments that mlx5dv.h's own setters and structures make, and where fields of its
// structures lie. golden.rs makes the same with this crate's formats and compares. One line each: a
// name, then bytes in hex or a number.
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void bytes(const char *name, const void *data, size_t len) {
    const unsigned char *at = data;
    printf("%s ", name);
    for (size_t i = 0; i < len; i++) {
        printf("%02x", at[i]);
    }
    printf("\n");
}

static void number(const char *name, unsigned long value) {
    printf("%s %lu\n", name, value);
}

int main(void) {
    struct mlx5_wqe_ctrl_seg ctrl;
    memset(&ctrl, 0, sizeof ctrl);
    mlx5dv_set_ctrl_seg(&ctrl, 0xbeef, MLX5_OPCODE_RDMA_WRITE, 0, 0xabcdef, MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, 0);
    bytes("ctrl_write", &ctrl, sizeof ctrl);
    memset(&ctrl, 0, sizeof ctrl);
    mlx5dv_set_ctrl_seg(&ctrl, 7, MLX5_OPCODE_ATOMIC_MASKED_CS, 9, 0x41,
                        MLX5_WQE_CTRL_FENCE | MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED, 5, 0, 0);
    bytes("ctrl_masked", &ctrl, sizeof ctrl);
    memset(&ctrl, 0, sizeof ctrl);
    mlx5dv_set_ctrl_seg(&ctrl, 65535, MLX5_OPCODE_NOP, 0, 1, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE, 1, 0, 0);
    bytes("ctrl_nop", &ctrl, sizeof ctrl);

    struct mlx5_wqe_data_seg data;
    mlx5dv_set_data_seg(&data, 0x12345678, 0x9abcdef0, (uintptr_t)0x0123456789abcdefull);
    bytes("data", &data, sizeof data);

    struct mlx5_wqe_raddr_seg raddr;
    memset(&raddr, 0, sizeof raddr);
    raddr.raddr = htobe64(0xfedcba9876543210ull);
    raddr.rkey = htobe32(0xcafe5a5a);
    bytes("raddr", &raddr, sizeof raddr);

    struct mlx5_wqe_atomic_seg atomic;
    memset(&atomic, 0, sizeof atomic);
    atomic.swap_add = htobe64(0x1122334455667788ull);
    bytes("atomic_fa", &atomic, sizeof atomic);
    atomic.compare = htobe64(0x99aabbccddeeff00ull);
    bytes("atomic_cs", &atomic, sizeof atomic);

    struct mlx5_wqe_inl_data_seg inl;
    inl.byte_count = htobe32(MLX5_INLINE_SEG | 28);
    bytes("inline", &inl, sizeof inl);

    struct mlx5_cqe64 cqe;
    memset(&cqe, 0, sizeof cqe);
    cqe.byte_cnt = htobe32(4097);
    cqe.timestamp = htobe64(0x0102030405060708ull);
    cqe.sop_drop_qpn = htobe32((uint32_t)MLX5_OPCODE_RDMA_READ << 24 | 0xabcdef);
    cqe.wqe_counter = htobe16(0xfeed);
    cqe.op_own = MLX5_CQE_REQ << 4;
    mlx5dv_set_cqe_owner(&cqe, 1);
    bytes("cqe", &cqe, sizeof cqe);
    number("cqe_opcode", mlx5dv_get_cqe_opcode(&cqe));
    number("cqe_owner", mlx5dv_get_cqe_owner(&cqe));

    struct mlx5_err_cqe err;
    memset(&err, 0, sizeof err);
    err.vendor_err_synd = 0x77;
    err.syndrome = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
    err.s_wqe_opcode_qpn = htobe32((uint32_t)MLX5_OPCODE_ATOMIC_FA << 24 | 0x40);
    err.wqe_counter = htobe16(12);
    err.op_own = MLX5_CQE_REQ_ERR << 4;
    bytes("err_cqe", &err, sizeof err);

    number("offset_cqe_tail", offsetof(struct mlx5_cqe64, sop_drop_qpn));
    number("offset_cqe_counter", offsetof(struct mlx5_cqe64, wqe_counter));
    number("offset_err_syndrome", offsetof(struct mlx5_err_cqe, syndrome));
    number("size_cqe", sizeof(struct mlx5_cqe64));
    number("size_block", MLX5_SEND_WQE_BB);

    number("opcode_nop", MLX5_OPCODE_NOP);
    number("opcode_write", MLX5_OPCODE_RDMA_WRITE);
    number("opcode_read", MLX5_OPCODE_RDMA_READ);
    number("opcode_cs", MLX5_OPCODE_ATOMIC_CS);
    number("opcode_fa", MLX5_OPCODE_ATOMIC_FA);
    number("opcode_masked_cs", MLX5_OPCODE_ATOMIC_MASKED_CS);
    number("opcode_masked_fa", MLX5_OPCODE_ATOMIC_MASKED_FA);

    number("syndrome_local_length", MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
    number("syndrome_local_qp_op", MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
    number("syndrome_local_prot", MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    number("syndrome_flush", MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    number("syndrome_mw_bind", MLX5_CQE_SYNDROME_MW_BIND_ERR);
    number("syndrome_bad_resp", MLX5_CQE_SYNDROME_BAD_RESP_ERR);
    number("syndrome_local_access", MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR);
    number("syndrome_remote_inval", MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
    number("syndrome_remote_access", MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
    number("syndrome_remote_op", MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
    number("syndrome_retry", MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
    number("syndrome_rnr", MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
    number("syndrome_aborted", MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);
    number("cqe_req", MLX5_CQE_REQ);
    number("cqe_req_err", MLX5_CQE_REQ_ERR);
    number("cqe_invalid", MLX5_CQE_INVALID);
    number("dbr_send", MLX5_SND_DBR * sizeof(__be32));
    return 0;
}
