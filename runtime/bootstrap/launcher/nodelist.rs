//! Slurm's lists of nodes: `n[1-3,07],gpu5`.

use crate::config::MAX_NPES;

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

/// Returns all nodes of a list, at most as many as a job has PEs.
pub fn all(list: &str) -> Result<Vec<String>, String> {
    let mut nodes = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        // An item ends at the first comma outside brackets.
        let mut inside = false;
        let end = rest.find(|c| {
            inside = c == '[' || inside && c != ']';
            c == ',' && !inside
        });
        let (item, after) = end.map_or((rest, ""), |end| (&rest[..end], &rest[end + 1..]));
        expand(item, &mut nodes)?;
        rest = after;
    }
    Ok(nodes)
}

/// Adds the nodes of an item: the first bracket's numbers, each followed by what the rest stands
/// for.
fn expand(item: &str, nodes: &mut Vec<String>) -> Result<(), String> {
    let too_many = || format!("more than {MAX_NPES} nodes");
    let mut heads = vec![String::new()];
    let mut rest = item;
    while let Some((before, inside)) = rest.split_once('[') {
        let (ranges, after) = inside.split_once(']').ok_or("a bracket is not closed")?;
        let numbers = numbers(ranges)?;
        if heads.len().saturating_mul(numbers.len()) > MAX_NPES as usize {
            return Err(too_many());
        }
        let with = |head: String| numbers.iter().map(move |number| format!("{head}{before}{number}"));
        heads = heads.into_iter().flat_map(with).collect();
        rest = after;
    }
    if nodes.len() + heads.len() > MAX_NPES as usize {
        return Err(too_many());
    }
    for head in heads {
        nodes.push(first(&format!("{head}{rest}"))?);
    }
    Ok(())
}

/// Returns the numbers of `1-3,07`, with the digits that they have there.
fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let parse = |text: &str| {
            let digits = (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| digits).ok_or_else(|| format!("[{ranges}] is no list of numbers"))
        };
        let (low, high) = (parse(from)?, parse(to)?);
        if high < low || high - low >= MAX_NPES || numbers.len() > MAX_NPES as usize {
            return Err(format!("[{ranges}] is empty or has more than {MAX_NPES} nodes"));
        }
        numbers.extend((low..=high).map(|number| format!("{number:0width$}", width = from.len())));
    }
    Ok(numbers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{all, first};

    #[test]
    fn all_nodes_of_a_list() {
        for (list, nodes) in [
            ("n1", "n1"),
            ("n1,n2", "n1 n2"),
            ("n[09-11,3]", "n09 n10 n11 n3"),
            ("r[1-2]n[7-8],x", "r1n7 r1n8 r2n7 r2n8 x"),
            ("n[1,2]-ib,y", "n1-ib n2-ib y"),
        ] {
            assert_eq!(all(list).unwrap().join(" "), nodes, "{list}");
        }
        for list in
            [",n1", "n[", "n[]", "n[a-b]", "n[3-1]", "n[1-2", "n[1-9999]", "n[0-99]x[0-99]", "n1;rm", "n[1-4294967295]"]
        {
            assert!(all(list).is_err(), "{list}");
        }
    }

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
