//! The bill of materials, in the form of [CycloneDX 1.5](https://cyclonedx.org/docs/1.5/json/).

use serde_json::{Value, json};

use crate::crates::Crate;

/// Returns the bill of materials of `crates`, made at `time`. Equal input makes equal text.
pub(crate) fn bill(crates: &[Crate], time: &str) -> Value {
    let version = crates.iter().find(|one| one.name == "oxshmem").map_or("", |one| &one.version);
    let components: Vec<Value> = crates.iter().map(component).collect();
    let dependencies: Vec<Value> = crates
        .iter()
        .map(|one| {
            let needs: Vec<String> = one.needs.iter().filter_map(|place| crates.get(*place)).map(purl).collect();
            json!({"ref": purl(one), "dependsOn": needs})
        })
        .collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "component": {
                "type": "application",
                "bom-ref": format!("oxshmem-package@{version}"),
                "name": "oxshmem",
                "version": version,
                "licenses": [{"expression": "Apache-2.0 OR MIT"}],
            },
        },
        "components": components,
        "dependencies": dependencies,
    })
}

fn component(one: &Crate) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(one),
        "name": one.name,
        "version": one.version,
        "description": one.description,
        "scope": "required",
        "licenses": [{"expression": one.licence}],
        "purl": purl(one),
    });
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// Returns the package URL, by which tools look up advisories.
fn purl(one: &Crate) -> String {
    format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::crates::linked;

    #[test]
    fn every_crate_is_a_component_with_dependencies_that_exist() {
        let crates = linked(&["oxshmem".to_owned()], "x86_64-unknown-linux-gnu").unwrap();
        let bill = bill(&crates, "2026-01-31T12:00:00Z");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let components = bill["components"].as_array().unwrap();
        let refs: BTreeSet<String> = components.iter().map(|one| text(&one["bom-ref"])).collect();
        assert_eq!((components.len(), refs.len()), (crates.len(), crates.len()));
        assert!(refs.contains(&format!("pkg:cargo/oxshmem@{}", env!("CARGO_PKG_VERSION"))));
        for one in bill["dependencies"].as_array().unwrap() {
            assert!(refs.contains(&text(&one["ref"])), "{one}");
            for need in one["dependsOn"].as_array().unwrap() {
                assert!(refs.contains(&text(need)), "{one}");
            }
        }
        let hashed = components.iter().filter(|one| one.get("hashes").is_some()).count();
        assert_eq!(hashed, crates.iter().filter(|one| !one.is_ours()).count());
    }
}
