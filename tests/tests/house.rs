//! What must not change by accident: the WIT package is pinned by its hash beside its version.

use std::{fs, path::Path};

/// Package version and SHA-256 over the names and contents of `wit/*.wit`, in the order of their names. A change of the
/// contract changes the version, then this line.
const PINNED: (&str, &str) = ("0.1.0", "35d9c0c217155b49365899e49b0eb808acdbdbeca4312a39e23ed726dd97a653");

#[test]
fn the_wit_package_is_the_one_that_is_pinned() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".wit"))
        .collect();
    names.sort();
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for name in &names {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        assert!(
            text.contains(&format!("package tidegate:plugin@{};", PINNED.0)),
            "{name} is of another package version"
        );
        context.update(name.as_bytes());
        context.update(text.as_bytes());
    }
    let hash: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, PINNED.1, "wit/ changed: until 0.1.0 is tagged pin the new hash here, later a new version");
}
