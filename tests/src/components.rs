//! Components that must be refused, written byte by byte or changed from good ones.

use std::fs;

use crate::broker::component;

/// A component that imports one empty instance of a name and exports nothing.
pub fn importing(name: &str) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    // Section 7: one type, an instance without exports. Section 10: one import of it.
    bytes.extend_from_slice(&[7, 3, 1, 0x42, 0]);
    let length = u8::try_from(name.len()).expect("a short name");
    let mut import = vec![1, 0, length];
    import.extend_from_slice(name.as_bytes());
    import.extend_from_slice(&[5, 0]);
    bytes.push(10);
    bytes.push(u8::try_from(import.len()).expect("a short section"));
    bytes.extend_from_slice(&import);
    bytes
}

/// A built plugin in which a text was replaced by another of the same length, everywhere.
///
/// # Panics
/// If the text is not there, or the lengths differ.
pub fn replaced(plugin: &str, text: &str, by: &str) -> Vec<u8> {
    assert_eq!(text.len(), by.len(), "a replacement must not move anything");
    let mut bytes = fs::read(component(plugin)).unwrap();
    let mut found = 0;
    let mut at = 0;
    while at + text.len() <= bytes.len() {
        if bytes[at..].starts_with(text.as_bytes()) {
            bytes[at..at + text.len()].copy_from_slice(by.as_bytes());
            found += 1;
        }
        at += 1;
    }
    assert!(found > 0, "{plugin} does not hold {text:?}");
    bytes
}
