//! Variables that Kubernetes sets in the containers of a pod, for each Service of its namespace.
//! See <https://kubernetes.io/docs/tutorials/services/connect-applications-service/>, "Environment
//! Variables".

use std::net::{IpAddr, SocketAddr};

/// Returns whether a variable is one of a Service whose name begins with `oxshmem`. `rest` is what
/// its name has after `OXSHMEM_`: the rest of the Service's name, and what the value is.
pub(super) fn is_of_service(rest: &str, value: &str) -> bool {
    let words: Vec<&str> = rest.split('_').collect();
    match *words {
        [.., "SERVICE", "HOST"] => is_address(value),
        // The port's name may follow.
        _ if words.windows(2).any(|pair| pair == ["SERVICE", "PORT"]) => is_number(value),
        [.., "PORT", port, protocol] if is_number(port) && is_protocol(protocol) => is_url(value),
        [.., "PORT", port, protocol, what] if is_number(port) && is_protocol(protocol) => match what {
            "PROTO" => is_protocol(&value.to_ascii_uppercase()),
            "PORT" => is_number(value),
            "ADDR" => is_address(value),
            _ => false,
        },
        [.., "PORT"] => is_url(value),
        _ => false,
    }
}

fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

fn is_number(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

fn is_protocol(text: &str) -> bool {
    ["TCP", "UDP", "SCTP"].contains(&text)
}

fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(protocol, place)| {
        is_protocol(&protocol.to_ascii_uppercase()) && place.parse::<SocketAddr>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_services_are_known_by_name_and_value() {
        for (name, value) in [
            ("SERVICE_HOST", "10.96.0.7"),
            ("SERVICE_PORT", "22"),
            ("SERVICE_PORT_SSH", "22"),
            ("PORT", "tcp://10.96.0.7:22"),
            ("PORT_22_TCP", "tcp://10.96.0.7:22"),
            ("PORT_22_TCP_PROTO", "tcp"),
            ("PORT_22_TCP_PORT", "22"),
            ("PORT_22_TCP_ADDR", "10.96.0.7"),
            ("RING_SERVICE_HOST", "fd00::7"),
            ("RING_0_SERVICE_PORT", "22"),
            ("RING_PORT", "udp://[fd00::7]:53"),
            ("RING_PORT_53_UDP", "udp://[fd00::7]:53"),
            ("RING_PORT_53_UDP_ADDR", "fd00::7"),
        ] {
            assert!(is_of_service(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("", ""),
            ("PORT", "22"),
            ("PORT", "http://10.96.0.7:80"),
            ("PORT", "tcp://ring:22"),
            ("SERVICE_HOST", "ring"),
            ("SERVICE_PORT", "tcp"),
            ("SERVICE", "10.96.0.7"),
            ("PORT_22_TCP", "22"),
            ("PORT_22_HTTP", "tcp://10.96.0.7:22"),
            ("PORT_22_TCP_HOST", "10.96.0.7"),
            ("QP_DEPHT", "128"),
        ] {
            assert!(!is_of_service(name, value), "{name}={value}");
        }
    }
}
