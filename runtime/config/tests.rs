//! Tests of the configuration.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use proptest::prelude::*;

use super::value::Value;
use super::*;

fn one(name: &str, value: &str) -> Result<Config, ConfigError> {
    Config::from_vars([(name, value)])
}

#[test]
fn defaults_are_within_their_own_limits_and_parse_back() {
    let config = Config::from_vars::<&str, &str>([]).unwrap();
    assert_eq!(config, Config::default());
    for variable in VARIABLES {
        assert!(variable.name.starts_with(PREFIX));
        let text = variable.default();
        if !text.is_empty() {
            let mut parsed = Config::default();
            assert!((variable.parse)(&mut parsed, &text), "{}={text}", variable.name);
            assert_eq!((variable.show)(&parsed), text);
            assert_eq!((variable.origin)(&parsed), Origin::Environment);
        }
    }
}

#[test]
fn values_reach_their_fields() {
    let config = Config::from_vars([
        ("OXSHMEM_DEVICE", "cpu"),
        ("OXSHMEM_TRANSPORT", "ibgda"),
        ("OXSHMEM_HEAP_MAX", "1G"),
        ("OXSHMEM_HEAP_CHUNK", "2097152"),
        ("OXSHMEM_TIMEOUT", "500ms"),
        ("OXSHMEM_KERNEL_TIMEOUT", "2min"),
        ("OXSHMEM_DISABLE_P2P", "true"),
        ("OXSHMEM_HCA", "verbs:mlx5_0/2"),
        ("OXSHMEM_IB_GID_INDEX", "3"),
        ("OXSHMEM_IB_UDP_SPORT", "49152,50000"),
        ("OXSHMEM_LOG", "info,oxshmem_hca=trace"),
        ("OXSHMEM_DUMP", "abort,signal"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    assert_eq!(config.device(), Device::Cpu);
    assert_eq!(config.transport(), Transport::Ibgda);
    assert_eq!(config.heap_max(), ByteSize(1 << 30));
    assert_eq!(config.heap_chunk(), ByteSize(2 << 20));
    assert_eq!(config.timeout(), Duration::from_millis(500));
    assert_eq!(config.kernel_timeout(), Duration::from_secs(120));
    assert!(config.disable_p2p());
    assert_eq!(config.ib_gid_index(), Choice::Given(3));
    assert_eq!(config.hca(), &Hca::Verbs { card: "mlx5_0/2".parse().ok() });
    assert_eq!(config.ib_udp_sport(), &[49152, 50000]);
    assert_eq!(config.log().to_string(), "info,oxshmem_hca=trace");
    let origins: Vec<_> = config.settings().filter(|(_, _, origin)| *origin == Origin::Environment).collect();
    assert_eq!(config.dump(), Dumps { signal: true, deadline: false, abort: true });
    assert_eq!(origins.len(), 12);
}

#[test]
fn unknown_names_are_refused_with_the_nearest_known() {
    let error = one("OXSHMEM_QP_DEPHT", "128").unwrap_err();
    assert_eq!(error, ConfigError::Unknown { name: "OXSHMEM_QP_DEPHT".into(), suggestion: Some("OXSHMEM_QP_DEPTH") });
    assert!(error.to_string().contains("did you mean OXSHMEM_QP_DEPTH?"), "{error}");
    let error = one("OXSHMEM_ZZZZZZZZZZZZ", "1").unwrap_err();
    assert_eq!(error, ConfigError::Unknown { name: "OXSHMEM_ZZZZZZZZZZZZ".into(), suggestion: None });
    assert!(matches!(one("OXSHMEM_", "1").unwrap_err(), ConfigError::Unknown { .. }));
    assert!(one("OXSHMEM_CUDA", "0").is_ok(), "a variable of the build");
    assert!(one("OXSHMEM_RING_PORT", "tcp://10.96.0.7:22").is_ok(), "a variable of Kubernetes");
    assert!(matches!(one("OXSHMEM_RING_PORT", "22").unwrap_err(), ConfigError::Unknown { .. }));
}

#[test]
fn malformed_values_name_the_value_and_the_form() {
    for (name, value, words) in [
        ("OXSHMEM_DEVICE", "gpu", "`auto`, `cpu` or `cuda`"),
        ("OXSHMEM_DEVICE", "", "`auto`"),
        ("OXSHMEM_HCA", "verbs:", "`verbs:DEVICE/PORT`"),
        ("OXSHMEM_HCA", "mlx5_0", "`mlx5:DEVICE`"),
        ("OXSHMEM_HCA_DEVICES", "mlx5_0,", "`mlx5_0,mlx5_3/2`"),
        ("OXSHMEM_HCA_DEVICES", "0=mlx5_0,0=mlx5_1", "a mapping like"),
        ("OXSHMEM_HCA_DEVICES", "0=a+b+c+d+e", "up to 4 devices for each"),
        ("OXSHMEM_HCA_DEVICES_PER_PE", "all", "`auto` or an integer, 1 to 4"),
        ("OXSHMEM_HCA", "verbs:mlx5_0/0", "`verbs:DEVICE/PORT`"),
        ("OXSHMEM_HCA", "verbs:mlx5_0/1/2", "`verbs:DEVICE/PORT`"),
        ("OXSHMEM_HCA", "verbs:../mlx5_0", "`verbs:DEVICE/PORT`"),
        ("OXSHMEM_QP_DEPTH", "-1", "a power of two, 256 to 16384"),
        ("OXSHMEM_QP_DEPTH", "0x100", "256 to 16384"),
        ("OXSHMEM_QP_DEPTH", "99999999999999999999", "256 to 16384"),
        ("OXSHMEM_HEAP_MAX", "1Q", "`64M`"),
        ("OXSHMEM_HEAP_MAX", "99999999T", "1M to 512G"),
        ("OXSHMEM_HEAP_MAX", "M", "1M to 512G"),
        ("OXSHMEM_TIMEOUT", "30", "`500ms`"),
        ("OXSHMEM_TIMEOUT", "1.5s", "1ms to 24h"),
        ("OXSHMEM_DISABLE_P2P", "yes", "`true`"),
        ("OXSHMEM_LOG", "verbose", "`debug`"),
        ("OXSHMEM_DUMP", "none,abort", "`none`, or a list"),
        ("OXSHMEM_IB_UDP_SPORT", "50000,", "commas"),
        ("OXSHMEM_JOB", "zz", "32 hexadecimal digits"),
        ("OXSHMEM_COLLECTIVES", "fcollect=tree", "for `broadcast` and `reduce` `tree`"),
        ("OXSHMEM_RENDEZVOUS", "localhost", "host:port"),
        ("OXSHMEM_STAGING", "yes", "`auto`, `on`, `off` or a size like"),
    ] {
        let error = one(name, value).unwrap_err();
        assert!(matches!(error, ConfigError::Malformed { .. }), "{name}={value}: {error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{name}={value}:")) && text.contains(words), "{text}");
    }
    let value = OsString::from_vec(vec![0xff]);
    assert!(matches!(
        Config::from_vars([(OsString::from("OXSHMEM_HCA"), value)]).unwrap_err(),
        ConfigError::Malformed { .. }
    ));
}

#[test]
fn send_queues_are_deep_while_they_fit() {
    let config = Config::builder().qps_per_peer(4u32).build().unwrap();
    let depths = [1, 2, 32, 33, 64, 128, 256, 512, 100_000].map(|n_pes| config.send_queue_depth(n_pes));
    assert_eq!(depths, [8192, 8192, 8192, 4096, 4096, 2048, 1024, 512, 512]);
    let given = config.to_builder().qp_depth(512u32).build().unwrap();
    assert_eq!(given.send_queue_depth(2), 512);
}

#[test]
fn staging_rings_are_long_while_they_fit() {
    let auto = Config::default();
    let bytes = [1, 56, 64, 256, 257, 1000, 100_000].map(|rings| auto.staging_ring_bytes(rings));
    assert_eq!(bytes, [4 << 20, 4 << 20, 4 << 20, 1 << 20, 512 << 10, 256 << 10, 64 << 10]);
    let given = Config::builder().staging_ring(ByteSize(2048)).build().unwrap();
    assert_eq!(given.staging_ring_bytes(1000), 2048);
}

#[test]
fn limits_hold_for_the_environment_and_for_the_program() {
    for (name, value) in [
        ("OXSHMEM_QP_DEPTH", "64"),
        ("OXSHMEM_QP_DEPTH", "65536"),
        ("OXSHMEM_QP_DEPTH", "1000"),
        ("OXSHMEM_QPS_PER_PEER", "0"),
        ("OXSHMEM_HCA_DEVICES_PER_PE", "0"),
        ("OXSHMEM_HCA_DEVICES_PER_PE", "5"),
        ("OXSHMEM_HEAP_CHUNK", "512K"),
        ("OXSHMEM_HEAP_CHUNK", "3M"),
        ("OXSHMEM_CPU_WORKERS", "65"),
        ("OXSHMEM_TIMEOUT", "0s"),
        ("OXSHMEM_IB_SL", "16"),
        ("OXSHMEM_IB_TIMEOUT", "0"),
        ("OXSHMEM_IB_UDP_SPORT", "50000,1"),
        ("OXSHMEM_STAGING", "8"),
        ("OXSHMEM_STAGING", "2G"),
        ("OXSHMEM_STAGING_RING", "1K"),
        ("OXSHMEM_STAGING_RING", "3M"),
    ] {
        let error = one(name, value).unwrap_err();
        assert!(matches!(error, ConfigError::OutOfRange { origin: Origin::Environment, .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("{name}=")), "{error}");
    }
    let error = Config::builder().qp_depth(100u32).build().unwrap_err();
    assert!(matches!(error, ConfigError::OutOfRange { origin: Origin::Builder, .. }), "{error}");
}

#[test]
fn contradictions_name_both_sides() {
    let error = Config::from_vars([("OXSHMEM_HEAP_MAX", "1M"), ("OXSHMEM_HEAP_CHUNK", "2M")]).unwrap_err();
    assert!(error.to_string().contains("OXSHMEM_HEAP_CHUNK=2M contradicts OXSHMEM_HEAP_MAX=1M"), "{error}");
    for (name, value, hca) in [
        ("OXSHMEM_SOFT_FAULTS", "visibility", "mlx5:mlx5_0"),
        ("OXSHMEM_SOFT_TRACE", "1", "verbs"),
        ("OXSHMEM_IBGDA_DOORBELL", "cpu", "soft"),
        ("OXSHMEM_IBGDA_DOORBELL_RECORD", "never", "verbs"),
    ] {
        let error = Config::from_vars([(name, value), ("OXSHMEM_HCA", hca)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}={value} contradicts OXSHMEM_HCA={hca}: ")), "{error}");
    }
    let error = Config::from_vars([("OXSHMEM_NETWORK", "ibrc"), ("OXSHMEM_TRANSPORT", "p2p")]).unwrap_err();
    assert!(error.to_string().starts_with("OXSHMEM_NETWORK=ibrc contradicts OXSHMEM_TRANSPORT=p2p: "), "{error}");
    let error = one("OXSHMEM_RANK", "0").unwrap_err();
    assert_eq!(error, ConfigError::Incomplete { present: "OXSHMEM_RANK", missing: "OXSHMEM_RENDEZVOUS" });
    let error = Config::from_vars([
        ("OXSHMEM_RENDEZVOUS", "127.0.0.1:1"),
        ("OXSHMEM_RANK", "4"),
        ("OXSHMEM_NPES", "4"),
        ("OXSHMEM_JOB", "00112233445566778899aabbccddeeff"),
    ])
    .unwrap_err();
    assert!(matches!(error, ConfigError::Contradiction { .. }), "{error}");
}

#[test]
fn choices_of_a_card_that_contradict_each_other_are_refused() {
    for (vars, words) in [
        ([("OXSHMEM_HCA", "mlx5:mlx5_0"), ("OXSHMEM_HCA_DEVICES", "mlx5_1")], "name the device in one of them"),
        ([("OXSHMEM_HCA", "soft"), ("OXSHMEM_HCA_DEVICES", "^mlx5_1")], "the software HCA has no devices"),
        ([("OXSHMEM_HCA", "verbs"), ("OXSHMEM_HCA_DEVICES", "0=a,1=a+b")], "verbs drive one device per PE"),
        ([("OXSHMEM_HCA_DEVICES", "0=a+b"), ("OXSHMEM_QPS_PER_PEER", "1")], "or raise OXSHMEM_QPS_PER_PEER"),
        ([("OXSHMEM_HCA_DEVICES_PER_PE", "1"), ("OXSHMEM_HCA_DEVICES", "0=a")], "the mapping says how many devices"),
        ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "mlx5:a")], "or name several in OXSHMEM_HCA_DEVICES"),
        ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "verbs")], "verbs drive one device per PE"),
        ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "verbs:a")], "verbs drive one device per PE"),
        ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "soft")], "a PE drives one software HCA"),
        ([("OXSHMEM_HCA_DEVICES_PER_PE", "2"), ("OXSHMEM_HCA", "null")], "a PE drives one software HCA"),
        ([("OXSHMEM_HCA_DEVICES_PER_PE", "4"), ("OXSHMEM_QPS_PER_PEER", "3")], "or raise OXSHMEM_QPS_PER_PEER"),
    ] {
        let error = Config::from_vars(vars).unwrap_err();
        assert!(matches!(error, ConfigError::Contradiction { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(words) && vars.iter().all(|(name, _)| text.contains(name)), "{text}");
    }
    let mapped = Config::from_vars([("OXSHMEM_HCA", "mlx5"), ("OXSHMEM_HCA_DEVICES", "0=mlx5_0")]).unwrap();
    assert_eq!(mapped.hca_devices().to_string(), "0=mlx5_0");
    assert_eq!(mapped.hca(), &Hca::Mlx5 { card: None });
    for vars in [
        vec![("OXSHMEM_HCA", "mlx5"), ("OXSHMEM_HCA_DEVICES", "0=mlx5_0+mlx5_1,1=mlx5_2/1+mlx5_2/2")],
        vec![("OXSHMEM_HCA_DEVICES_PER_PE", "4"), ("OXSHMEM_HCA_DEVICES", "a,b,c,d")],
        vec![("OXSHMEM_HCA_DEVICES_PER_PE", "1"), ("OXSHMEM_HCA", "verbs:a")],
        vec![("OXSHMEM_HCA_DEVICES_PER_PE", "1"), ("OXSHMEM_HCA", "soft"), ("OXSHMEM_QPS_PER_PEER", "1")],
        vec![("OXSHMEM_HCA_DEVICES_PER_PE", "auto"), ("OXSHMEM_HCA", "null"), ("OXSHMEM_QPS_PER_PEER", "1")],
    ] {
        let config = Config::from_vars(vars.iter().copied());
        assert!(config.is_ok(), "{vars:?}: {config:?}");
    }
    assert_eq!(Config::default().hca_devices_per_pe(), Choice::Auto);
    assert_eq!(one("OXSHMEM_HCA_DEVICES_PER_PE", "2").unwrap().hca_devices_per_pe().given(), Some(2));
}

#[test]
fn the_program_overrides_the_environment() {
    let vars = [("OXSHMEM_DEVICE", "cuda"), ("OXSHMEM_QP_DEPTH", "256")];
    let config = Config::builder().device(Device::Cpu).vars(vars).build().unwrap();
    assert_eq!((config.device(), config.qp_depth()), (Device::Cpu, Choice::Given(256)));
    let changed = config.to_builder().qp_depth(512u32).build().unwrap();
    assert_eq!((changed.device(), changed.qp_depth()), (Device::Cpu, Choice::Given(512)));
}

/// A card may take up to four times as long as it is told before it sends again (InfiniBand
/// specification, 9.7.6.1.3).
#[test]
fn a_peer_that_is_gone_is_reported_before_the_deadline() {
    let config = Config::default();
    let tries = u64::from(config.ib_retry_count()) + 1;
    let longest = Duration::from_nanos((4096u64 << config.ib_timeout()) * tries * 4);
    assert!(longest < config.timeout(), "{longest:?}");
}

#[test]
fn the_documentation_has_the_table() {
    let mut table = String::from("| variable | default | form | meaning |\n|---|---|---|---|\n");
    for variable in VARIABLES {
        let default = variable.default();
        let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
        let form = variable.form();
        table += &format!("| `{}` | {default} | {form} | {} |\n", variable.name, variable.meaning.trim());
    }
    let page = include_str!("../../docs/environment.md");
    assert!(page.contains(&table), "docs/environment.md must contain this table:\n\n{table}");
}

proptest! {
    #[test]
    fn sizes_parse_back(bytes in any::<u64>(), shift in 0u32..64) {
        let size = ByteSize(bytes >> shift << shift);
        prop_assert_eq!(<ByteSize as Value>::parse(&size.show()), Some(size));
    }

    #[test]
    fn durations_parse_back(micros in any::<u64>()) {
        let duration = Duration::from_micros(micros);
        prop_assert_eq!(<Duration as Value>::parse(&duration.show()), Some(duration));
    }

    #[test]
    fn any_value_is_answered(index in 0..VARIABLES.len(), value in ".*") {
        let _ = one(VARIABLES[index].name, &value);
    }
}
