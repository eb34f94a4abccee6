//! Slurm's lists of nodes: `n[1-3,07],gpu5`.

/// Returns the first node of a list.
pub fn first(list: &str) -> Result<String, String> {
    let mut name = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        rest = &rest[end..];
        let Some(inside) = rest.strip_prefix('[') else { break };
        let (ranges, after) = inside.split_once(']').ok_or("a bracket is not closed")?;
        let number = ranges.split([',', '-']).next().unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("[{ranges}] does not begin with a number"));
        }
        name.push_str(number);
        rest = after;
    }
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        return Err(format!("'{name}' is not a node's name"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::first;

    #[test]
    fn the_first_node_of_a_list() {
        for (list, node) in [
            ("n1", "n1"),
            ("n1,n2", "n1"),
            ("n[1-4]", "n1"),
            ("n[001-128,200]", "n001"),
            ("rack[2,4]n[07-09],x", "rack2n07"),
            ("gpu-a.cluster,n[1-2]", "gpu-a.cluster"),
            ("n[3]-ib", "n3-ib"),
        ] {
            assert_eq!(first(list).as_deref(), Ok(node), "{list}");
        }
        for list in ["", ",n1", "n[", "n[]", "n[a-b]", "n[1-2", "[", "n1;rm", "[,]"] {
            assert!(first(list).is_err(), "{list}: {:?}", first(list));
        }
    }
}
