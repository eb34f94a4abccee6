//! What keeps requests in order: queue pairs that deliver so, or else requests that wait for all
//! before them.

use oxshmem_tests::Transport;

use super::{card_reports, counts, fails, job, report};

#[test]
fn nothing_waits_for_everything_before_it_unless_that_is_asked_for() {
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        for case in ["signals", "fence", "barriers"] {
            let reports = card_reports("in-order", job(case, transport, 2), "");
            assert!(counts(&reports, "wqes").iter().all(|count| *count > 0), "{case}: {reports}");
            assert_eq!(counts(&reports, "strong"), [0; 2], "{case} over {}: {reports}", transport.name());
        }
        let strong = job("signals", transport, 2).env("OXSHMEM_IB_STRONG_ORDERING", "1");
        let reports = card_reports("strong", strong, "");
        assert!(counts(&reports, "strong").iter().all(|count| *count > 0), "{reports}");
    }
}

#[test]
fn a_card_that_may_place_writes_out_of_order_is_told_not_to_or_is_waited_for() {
    const ROUTING: &str = "port:adaptive-routing=1";
    let unforced = format!("cap:dp_ordering_force=0,{ROUTING}");
    let line = "attempt queue pairs that deliver in order: no: a card of the job places writes out of order";
    for transport in [Transport::Ibgda, Transport::Ibrc] {
        // The order is forced; or no queue pair says that it has another one; or one does.
        for (lies, waits) in [(ROUTING, false), ("cap:dp_ordering_force=0", false), (&unforced, true)] {
            let reports = card_reports("order", job("signals", transport, 2), lies);
            let strong = counts(&reports, "strong");
            assert_eq!(strong.len(), 2, "{lies}: {reports}");
            assert!(strong.iter().all(|count| (*count > 0) == waits), "{lies} over {}: {reports}", transport.name());
            let text = report(job("hca_report", transport, 2).env("RDMA_STAND_IN", lies));
            assert_eq!(text.contains(line), waits, "{lies} over {}: {text}", transport.name());
        }
        // What is ordered strongly anyway need not be known.
        let asked = job("signals", transport, 2).env("OXSHMEM_IB_STRONG_ORDERING", "1");
        card_reports("order-asked", asked, &format!("{unforced},status:QUERY_QP=2"));
    }
    let contexts = job("contexts", Transport::Ibgda, 2).env("RDMA_STAND_IN", &unforced);
    contexts.passes();
}

#[test]
fn verbs_say_that_they_have_no_strong_ordering() {
    let job = job("hca_report", Transport::Ibrc, 2).env("OXSHMEM_HCA", "verbs:mlx5_0");
    fails(&job.env("OXSHMEM_IB_STRONG_ORDERING", "1"), "OXSHMEM_IB_STRONG_ORDERING=1 with OXSHMEM_HCA=verbs");
}
