//! What the stand-in is told to do otherwise than it does by itself: to fail, or to be lenient.
//!
//! By itself it is as strict as a card, its kernel and PCIe are (docs/notes/strictness.md).
//!
//! | item | effect |
//! |---|---|
//! | `errno:CALL=N` | the function fails with that errno, each time |
//! | `errno:CALL=N@K` | only its K-th call, from 1 |
//! | `status:COMMAND=S` | the firmware replies with that status, and syndrome 0xbad, each time |
//! | `status:COMMAND=S@K` | only the K-th time |
//! | `status:any=S@K` | the K-th command of all is refused so |
//! | `errno:any=N@K` | the K-th call of all that can fail fails so |
//! | `cap:FIELD=V` | a capability has that value; `qp_ts_format` is 1 (real time only) without, `dp_ordering_force` 1 |
//! | `vanish:command=1@K` | with the K-th command the card is gone |
//! | `vanish:wqe=K` | with the K-th work request the card is gone |
//! | `wqe:error=S@K` | on the first queue pair, the first work request at block K or later fails with syndrome S |
//! | `port:state=N` | ports are in that state (`ibv_port_state`) |
//! | `port:infiniband=1` | ports are on InfiniBand |
//! | `port:subnets=N` | card K is on subnet K modulo N, and a router joins them |
//! | `port:flid=0` | there is no router |
//! | `port:lmc=N` | each port has 2^N LIDs |
//! | `port:grh=1` | packets need a global route header |
//! | `port:sl=N` | only packets of that service level are forwarded |
//! | `port:adaptive-routing=1` | queue pairs that do not force their order say that reads and writes pass each other |
//! | `port:lid=N` | ports say that this is their LID |
//! | `port:bond=0` | ports that can be bonded (`cap:num_lag_ports=N`) are not |
//! | `device:none=1` | there is no device |
//! | `device:foreign=1` | libmlx5 does not drive the device |
//! | `device:atomics=K` | the device's atomics are of that kind (`ibv_atomic_cap`); without it they are atomic with each other only (1), as of all cards |
//! | `device:count=N` | there are N cards |
//! | `device:late=N` | whether cards acknowledge writes 2 us to 2 ms before these are visible (1) or not (0); without it they do |
//! | `device:old-kernel=1` | the kernel hides what the firmware refuses, as those before 5.18: `EIO`, and nothing in the output |
//! | `device:command-us=N` | a call that gives a card a command takes N microseconds more |
//! | `device:unordered=1` | what cards write becomes visible in any order, unless they read in between, as where a GPU's platform orders nothing |
//! | `device:kernel=1` | a kernel on the `cpu` device moves the data, as one on the GPU does where there is one |
//! | `report:trace=1` | commands, doorbells, WQEs and CQEs are printed |
//! | `report:file=PATH` | when a context is closed, what was made of it is written to the end of that file, a line |
//!
//! `CALL` is the name of a function, for some with more behind a dot:
//! `mlx5dv_devx_umem_reg_ex.dmabuf`, `.address`; `mlx5dv_devx_alloc_uar.dedicated`, `.bf`, `.nc`.
//! `COMMAND` is the name in the PRM.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The variable that holds the lies. It has not the prefix of OxSHMEM's own, which knows all of
/// those.
pub const VARIABLE: &str = "RDMA_STAND_IN";

#[derive(Debug, Clone, PartialEq, Eq)]
struct Lie {
    topic: String,
    name: String,
    value: String,
    /// Which occurrence, from 1; every one without.
    only: Option<u64>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Lies {
    all: Vec<Lie>,
    seen: Mutex<HashMap<String, u64>>,
}

impl Lies {
    /// Those of the environment.
    pub(crate) fn from_env() -> Self {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        match Self::parse(&text) {
            Ok(all) => Self { all, seen: Mutex::default() },
            Err(item) => {
                // There is no caller to return it to, and a test must not pass by mistake.
                eprintln!("stand-in: {VARIABLE}: cannot read {item:?}");
                std::process::abort();
            }
        }
    }

    fn parse(text: &str) -> Result<Vec<Lie>, String> {
        let one = |item: &str| -> Option<Lie> {
            let (topic, rest) = item.split_once(':')?;
            let (name, value) = rest.split_once('=')?;
            let (value, only) = match value.split_once('@') {
                Some((value, count)) => (value, Some(count.parse().ok()?)),
                None => (value, None),
            };
            let known = ["errno", "status", "cap", "vanish", "wqe", "port", "device", "report"].contains(&topic);
            known.then(|| Lie { topic: topic.to_owned(), name: name.to_owned(), value: value.to_owned(), only })
        };
        text.split(',').filter(|item| !item.is_empty()).map(|item| one(item).ok_or_else(|| item.to_owned())).collect()
    }

    /// What is said about `name`, if anything.
    pub(crate) fn text(&self, topic: &str, name: &str) -> Option<&str> {
        self.all.iter().find(|lie| lie.topic == topic && lie.name == name).map(|lie| lie.value.as_str())
    }

    /// The same as a number.
    pub(crate) fn number(&self, topic: &str, name: &str) -> Option<u64> {
        let text = self.text(topic, name)?;
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
    }

    /// What is said about one occurrence of `name`, with its number.
    pub(crate) fn place(&self, topic: &str, name: &str) -> Option<(u64, u64)> {
        let lie = self.all.iter().find(|lie| lie.topic == topic && lie.name == name)?;
        Some((self.number(topic, name)?, lie.only?))
    }

    /// All numbers of a topic.
    pub(crate) fn numbers(&self, topic: &str) -> impl Iterator<Item = (&str, u64)> {
        self.all
            .iter()
            .filter(move |lie| lie.topic == topic)
            .filter_map(move |lie| Some((lie.name.as_str(), self.number(topic, &lie.name)?)))
    }

    /// Counts an occurrence of `name`, and says whether it is to go wrong, and how.
    pub(crate) fn occurs(&self, topic: &str, name: &str) -> Option<u64> {
        let lie = self.all.iter().find(|lie| lie.topic == topic && lie.name == name)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let count = seen.entry(format!("{topic}:{name}")).or_default();
        *count += 1;
        if lie.only.is_none_or(|only| only == *count) { self.number(topic, name) } else { None }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read() {
        let all = Lies::parse("errno:ibv_open_device=13,status:CREATE_QP=0x3@2,report:file=/tmp/x").unwrap();
        let lies = Lies { all, seen: Mutex::default() };
        assert_eq!([(); 2].map(|()| lies.occurs("errno", "ibv_open_device")), [Some(13); 2]);
        assert_eq!([(); 3].map(|()| lies.occurs("status", "CREATE_QP")), [None, Some(3), None]);
        assert_eq!(lies.place("status", "CREATE_QP"), Some((3, 2)));
        assert_eq!(lies.place("errno", "ibv_open_device"), None);
        assert_eq!(lies.text("report", "file"), Some("/tmp/x"));
        assert_eq!(lies.occurs("status", "CREATE_CQ"), None);
        for bad in ["nonsense", "errno:x", "errno:x=1@y", "other:x=1"] {
            assert_eq!(Lies::parse(bad), Err(bad.to_owned()));
        }
    }
}
