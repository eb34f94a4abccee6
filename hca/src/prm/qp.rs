//! Queue pairs: creation, the transitions of an RC QP, query and destruction
//! (`mlx5_ifc_create_qp_*`, `mlx5_ifc_rst2init_qp_*`, `mlx5_ifc_init2rtr_qp_*`,
//! `mlx5_ifc_rtr2rts_qp_*`, `mlx5_ifc_query_qp_*`, `mlx5_ifc_destroy_qp_*`; 2ERR and 2RST as in
//! Linux's `mlx5_ifc_2err_qp_in_bits`, `mlx5_ifc_2rst_qp_in_bits`).

use super::command::command;
use super::qpc::QpContext;

command! {
    CreateQp, 0x110 => 16;
    /// CREATE_QP.
    in CreateQp {
        /// Optional fields that are meant.
        opt_param_mask: u32 = 0x80, 32;
        /// Offset of the send queue in the umem, bytes.
        wq_umem_offset: u64 = 0x800, 64;
        /// Umem of the send queue.
        wq_umem_id: u32 = 0x840, 32;
        /// The queue is in a umem.
        wq_umem_valid: bool = 0x860, 1;
        @
        /// The QP.
        qpc: QpContext = 0xc0;
    }
    /// Its output.
    out CreateQpOut {
        /// 24-bit QP number.
        qpn: u32 = 0x48, 24;
    }
}

command! {
    Rst2InitQp, 0x110 => 16;
    /// RST2INIT_QP.
    in Rst2InitQp {
        /// QP number.
        qpn: u32 = 0x48, 24;
        /// Optional fields that are meant.
        opt_param_mask: u32 = 0x80, 32;
        @
        /// What to set.
        qpc: QpContext = 0xc0;
    }
    /// Its output.
    out Rst2InitQpOut {}
}

command! {
    Init2RtrQp, 0x110 => 16;
    /// INIT2RTR_QP.
    in Init2RtrQp {
        /// QP number.
        qpn: u32 = 0x48, 24;
        /// Optional fields that are meant.
        opt_param_mask: u32 = 0x80, 32;
        @
        /// What to set.
        qpc: QpContext = 0xc0;
    }
    /// Its output.
    out Init2RtrQpOut {}
}

command! {
    Rtr2RtsQp, 0x110 => 16;
    /// RTR2RTS_QP.
    in Rtr2RtsQp {
        /// QP number.
        qpn: u32 = 0x48, 24;
        /// Optional fields that are meant.
        opt_param_mask: u32 = 0x80, 32;
        @
        /// What to set.
        qpc: QpContext = 0xc0;
    }
    /// Its output.
    out Rtr2RtsQpOut {}
}

command! {
    ToErrQp, 16 => 16;
    /// 2ERR_QP.
    in ToErrQp {
        /// QP number.
        qpn: u32 = 0x48, 24;
    }
    /// Its output.
    out ToErrQpOut {}
}

command! {
    ToRstQp, 16 => 16;
    /// 2RST_QP.
    in ToRstQp {
        /// QP number.
        qpn: u32 = 0x48, 24;
    }
    /// Its output.
    out ToRstQpOut {}
}

command! {
    QueryQp, 16 => 0x110;
    /// QUERY_QP.
    in QueryQp {
        /// QP number.
        qpn: u32 = 0x48, 24;
    }
    /// Its output.
    out QueryQpOut {
        @
        /// The QP.
        qpc: QpContext = 0xc0;
    }
}

command! {
    DestroyQp, 16 => 16;
    /// DESTROY_QP.
    in DestroyQp {
        /// QP number.
        qpn: u32 = 0x48, 24;
    }
    /// Its output.
    out DestroyQpOut {}
}

#[cfg(test)]
mod tests {
    use super::super::qpc::SendDbrMode;
    use super::super::{Command, layout};
    use super::*;

    #[test]
    fn fields_land_where_the_prm_says() {
        let mut create = CreateQp { wq_umem_id: 0x1234_5678, wq_umem_valid: true, ..CreateQp::default() };
        create.qpc.pd = 0xabcdef;
        create.qpc.send_dbr_mode = SendDbrMode::NoDbrExt as u8;
        create.qpc.dbr_addr = 0x40;
        create.qpc.primary_address_path.rmac_31_0 = 0xdead_beef;
        let bytes = create.encode();
        assert_eq!(bytes.len(), CreateQp::IN_LEN);
        assert_eq!(&bytes[..2], &[0x05, 0x00]);
        assert_eq!(&bytes[0xe8 / 8..0x100 / 8], &[0xab, 0xcd, 0xef]);
        // The upper two bits of the word that ends in `user_index`.
        assert_eq!(&bytes[0x140 / 8..0x160 / 8], &[0x40, 0, 0, 0]);
        assert_eq!(&bytes[0x840 / 8..0x864 / 8], &[0x12, 0x34, 0x56, 0x78]);
        assert_eq!(bytes[0x860 / 8], 0x80);
        assert_eq!(layout::get(&bytes, 0xc0 + 0xc0 + 0x140, 32), 0xdead_beef);
        assert_eq!(CreateQp::decode(&bytes), Ok(create));
    }

    #[test]
    fn a_reserved_bit_is_found() {
        let mut bytes = Rst2InitQp::default().encode();
        layout::set(&mut bytes, 0x60, 1, 1);
        assert_eq!(Rst2InitQp::decode(&bytes), Err(0x60));
    }
}
