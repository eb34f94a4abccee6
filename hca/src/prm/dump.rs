//! Commands and their replies as people read them: name, and every field that is not 0.

use std::fmt::Write as _;

use super::caps::AtomicCapsOut;
use super::layout::{self, Layout};
use super::{Command, CommandStatus, Opcode, caps, counter, cq, lag, mkey, outcome, pd, qp, uar};

/// Returns what a command says, as `CREATE_CQ cq_umem_offset=0x1000 cqc.log_cq_size=0x1`. Bits that
/// no known field has are counted.
pub fn command(input: &[u8]) -> String {
    let Some(opcode) = Opcode::of(input) else {
        let head = input.iter().take(4).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        return format!("unknown command of {} bytes, {head}...", input.len());
    };
    let fields = match opcode {
        Opcode::QueryHcaCap => show_input::<caps::QueryHcaCap>(input),
        Opcode::CreateMkey => show_input::<mkey::CreateMkey>(input),
        Opcode::DestroyMkey => show_input::<mkey::DestroyMkey>(input),
        Opcode::CreateCq => show_input::<cq::CreateCq>(input),
        Opcode::DestroyCq => show_input::<cq::DestroyCq>(input),
        Opcode::QueryCq => show_input::<cq::QueryCq>(input),
        Opcode::CreateQp => show_input::<qp::CreateQp>(input),
        Opcode::DestroyQp => show_input::<qp::DestroyQp>(input),
        Opcode::Rst2InitQp => show_input::<qp::Rst2InitQp>(input),
        Opcode::Init2RtrQp => show_input::<qp::Init2RtrQp>(input),
        Opcode::Rtr2RtsQp => show_input::<qp::Rtr2RtsQp>(input),
        Opcode::ToErrQp => show_input::<qp::ToErrQp>(input),
        Opcode::ToRstQp => show_input::<qp::ToRstQp>(input),
        Opcode::QueryQp => show_input::<qp::QueryQp>(input),
        Opcode::AllocQCounter => show_input::<counter::AllocQCounter>(input),
        Opcode::DeallocQCounter => show_input::<counter::DeallocQCounter>(input),
        Opcode::QueryQCounter => show_input::<counter::QueryQCounter>(input),
        Opcode::AllocPd => show_input::<pd::AllocPd>(input),
        Opcode::DeallocPd => show_input::<pd::DeallocPd>(input),
        Opcode::AllocUar => show_input::<uar::AllocUar>(input),
        Opcode::DeallocUar => show_input::<uar::DeallocUar>(input),
        Opcode::QueryLag => show_input::<lag::QueryLag>(input),
    };
    format!("{}{fields}", opcode.name())
}

/// Returns what the HCA replied to `input`: status and syndrome, and if it is OK what the output
/// says.
pub fn answer(input: &[u8], output: &[u8]) -> String {
    let (status, syndrome) = outcome(output);
    if status != CommandStatus::Ok {
        // The number itself: statuses that are not known count as internal errors.
        let number = output.first().copied().unwrap_or_default();
        return format!("{} (status {number:#04x}) syndrome {syndrome:#x}", status.text());
    }
    let fields = match Opcode::of(input) {
        Some(Opcode::AllocPd) => show::<pd::AllocPdOut>(output),
        Some(Opcode::AllocUar) => show::<uar::AllocUarOut>(output),
        Some(Opcode::CreateMkey) => show::<mkey::CreateMkeyOut>(output),
        Some(Opcode::CreateCq) => show::<cq::CreateCqOut>(output),
        Some(Opcode::CreateQp) => show::<qp::CreateQpOut>(output),
        Some(Opcode::QueryCq) => show::<cq::QueryCqOut>(output),
        Some(Opcode::QueryQp) => show::<qp::QueryQpOut>(output),
        Some(Opcode::AllocQCounter) => show::<counter::AllocQCounterOut>(output),
        Some(Opcode::QueryQCounter) => show::<counter::QueryQCounterOut>(output),
        Some(Opcode::QueryLag) => show::<lag::QueryLagOut>(output),
        Some(Opcode::QueryHcaCap) => match caps::QueryHcaCap::read(input, 0).op_mod {
            caps::GENERAL_2_CURRENT => show::<caps::GeneralCaps2Out>(output),
            caps::ATOMIC_CURRENT => show::<AtomicCapsOut>(output),
            _ => show::<caps::GeneralCapsOut>(output),
        },
        _ => String::new(),
    };
    format!("OK{fields}")
}

fn show<L: Layout>(bytes: &[u8]) -> String {
    let mut fields = Vec::new();
    L::read(bytes, 0).show("", &mut fields);
    fields.into_iter().fold(String::new(), |mut text, (name, value)| {
        let _ = write!(text, " {name}={value:#x}");
        text
    })
}

fn show_input<C: Command>(input: &[u8]) -> String {
    let mut text = show::<C>(input);
    if input.len() < C::IN_LEN {
        let _ = write!(text, " ({} bytes, {} expected)", input.len(), C::IN_LEN);
        return text;
    }
    let mut rest = input.to_vec();
    layout::set(&mut rest, 0, 16, 0);
    if let Some(bit) = layout::reserved_bit::<C>(&rest) {
        let _ = write!(text, " (bit {bit:#x} is set, which has no name here)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_command_is_readable() {
        let mut create = cq::CreateCq { cq_umem_offset: 0x1000, cq_umem_valid: true, ..cq::CreateCq::default() };
        create.cqc.log_cq_size = 1;
        create.cqc.cc = true;
        let text = command(&create.encode());
        assert_eq!(text, "CREATE_CQ cq_umem_offset=0x1000 cq_umem_valid=0x1 cqc.cc=0x1 cqc.log_cq_size=0x1");
        let mut rtr = qp::Init2RtrQp { qpn: 0x41, ..qp::Init2RtrQp::default() };
        rtr.qpc.primary_address_path.udp_sport = 0xc123;
        assert_eq!(command(&rtr.encode()), "INIT2RTR_QP qpn=0x41 qpc.primary_address_path.udp_sport=0xc123");
    }

    #[test]
    fn an_answer_is_readable() {
        let mut output = [0; 16];
        super::super::set_outcome(&mut output, CommandStatus::BadParam, 0x5432);
        let input = pd::AllocPd {}.encode();
        assert_eq!(answer(&input, &output), "bad parameter (status 0x03) syndrome 0x5432");
        super::super::encode_output(&pd::AllocPdOut { pd: 7 }, &mut output);
        assert_eq!(answer(&input, &output), "OK pd=0x7");
        output = [0; 16];
        output[0] = 0x77;
        assert!(answer(&input, &output).contains("(status 0x77)"));
    }

    #[test]
    fn what_is_odd_is_said() {
        assert_eq!(command(&[0xff; 6]), "unknown command of 6 bytes, ffffffff...");
        assert_eq!(command(&[]), "unknown command of 0 bytes, ...");
        let mut bytes = qp::Rst2InitQp::default().encode();
        layout::set(&mut bytes, 0x60, 1, 1);
        assert!(command(&bytes).ends_with("(bit 0x60 is set, which has no name here)"));
        assert!(command(&bytes[..8]).contains("(8 bytes, 272 expected)"));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_text(opcode in 0u16..0x900, rest in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bytes = [&opcode.to_be_bytes()[..], &rest].concat();
            prop_assert!(!command(&bytes).is_empty() && !answer(&bytes, &rest).is_empty());
        }
    }
}
